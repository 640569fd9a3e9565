"""Statistics of attention for every query, from queries and keys only: memory is linear in the number of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.errors import InputError
from marginlens.result import Described
from marginlens.words import Fact

if TYPE_CHECKING:
    import torch

# Logits in memory at a time: rows of a few queries, so that O(tokens) is held.
_BLOCK_ENTRIES = {"cpu": 2**20, "cuda": 2**26}
_MIN_ROWS = 64  # queries of a head that are multiplied with its keys at once, unless rows are longer than a block
_MANY_PRODUCTS = 8  # small ones at once, which with a transposed factor are up to fifty times slower on some CPUs
_ROUNDINGS = 4.0  # of a logit's sum, in units of eps times the lengths of query and key


@dataclass(frozen=True, eq=False)
class AttentionRule:
    r"""The rule by which a layer computes attention from queries and keys.

    Query i and key j, of positions i and j, have the logit

    .. math:: l_{ij} = \mathrm{cap}(c\, q_i^\top k_j + b_{ij}),\quad \mathrm{cap}(l) = C \tanh(l/C),

    and attention is the softmax over the keys that a query sees, and over the learned sink if there is one. Grouped queries
    need no rule: with fewer key heads, neighbouring query heads share one. Queries and keys are given after any normalisation
    and rotation of the model.

    Attributes:
        scale: the factor c; 1/sqrt(d) if it is None.

        causal: whether a query sees no key after its own position.

        window: a query sees only keys less than this many positions away (1 is only its own position); all keys if None.

        softcap: the cap C; no cap if None.

        bias: a term that is added to logits before the cap: slopes (heads,) that multiply j - i (ALiBi), a tensor that
            broadcasts to (…, heads, queries, keys), or a function from a slice of queries and a slice of keys to that part of
            the tensor.

        sinks: (heads,) learned logits that take part in the softmax and belong to no key.

        mask: a tensor that broadcasts to (…, heads, queries, keys): True if a query sees a key; or numbers that are added after
            the cap, which hide a key if they are minus infinity or near the lowest number of their precision.
    """

    scale: float | None = None
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: torch.Tensor | Callable[..., torch.Tensor] | None = None
    sinks: torch.Tensor | None = None
    mask: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not 0.0 < abs(self.scale) < math.inf:
            raise InputError("scale", "a finite number other than zero", self.scale)
        if self.window is not None and self.window < 1:
            raise InputError(
                "window", "at least 1, the query's own position", self.window, "Leave it out to see all keys."
            )
        if self.softcap is not None and not 0.0 < self.softcap < math.inf:
            raise InputError("softcap", "a positive number", self.softcap, "Leave it out if logits are not capped.")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionStatistics(Described):
    r"""Statistics of every query of every head, as torch tensors of shape (…, heads, queries).

    A query without a visible key, or with a logit that is nan, has nan statistics and selects -1; `notes` counts such queries.
    With a learned sink, `entropy` and `n_effective` refer to the attention to keys, scaled to sum 1.

    Attributes:
        largest: the largest logit.

        margin: the largest logit less the second largest, infinite if the query sees only one key.

        selected: the index of the key with the largest logit; in a tie, one of the tied keys.

        tied: whether the margin is at most `rounding`: rounding could then have made another key the largest.

        rounding: the largest difference between two logits of the query that rounding alone can cause.

        log_sum_exp: the logarithm of the sum of the exponentials of all logits, including the sink's.

        entropy: the entropy in nats, as log Z + E[m - l] with m the largest logit: two sums of nonnegative terms, accurate to
            rounding even if one key has nearly all attention.

        n_effective: the papers' soft count of attended keys, 1/Σp². Another common count, exp(entropy), is `perplexity`.

        top_probability: the probability of the selected key.

        rest_probability: the probability of all other keys and the sink together, computed without subtraction from 1.

        sink_share: the attention to the first key that some query sees, which is the sink of most models.

        learned_sink: the attention to the learned sink, 0 without one.

        n_visible: the number of keys that the query sees.

        n_negligible: (n_tolerances, …, heads, queries) the largest number of keys whose total attention is at most a tolerance.
            If they are left out and the others scaled up in proportion, attention changes by at most the tolerance in total
            variation.

        selected_beside: the key with the largest logit among those that are not `left_out`, -1 if there is none; in a tie, one
            of the tied keys. None if no keys were named.

        margin_beside: its lead over the next of these keys, infinite if the query sees fewer than two of them. None if no keys
            were named.
    """

    largest: torch.Tensor
    margin: torch.Tensor
    selected: torch.Tensor
    tied: torch.Tensor
    rounding: torch.Tensor
    log_sum_exp: torch.Tensor
    entropy: torch.Tensor
    n_effective: torch.Tensor
    top_probability: torch.Tensor
    rest_probability: torch.Tensor
    sink_share: torch.Tensor
    learned_sink: torch.Tensor
    n_visible: torch.Tensor
    n_negligible: torch.Tensor
    selected_beside: torch.Tensor | None = None
    margin_beside: torch.Tensor | None = None
    quantities = "{n_queries} queries of {largest.shape[-2]} heads, largest logit {largest_logit:.6g}"

    @property
    def second(self) -> torch.Tensor:
        """The second largest logit; minus infinity if the query sees only one key."""
        return self.largest - self.margin

    @property
    def perplexity(self) -> torch.Tensor:
        """The perplexity exp(entropy), another effective number of tokens."""
        return self.entropy.exp()

    @property
    def by_measure(self) -> dict[str, torch.Tensor]:
        """The statistics (…, heads, queries) whose means over queries are measures of a probe, by the names of the measures."""
        return {
            "nnz": self.n_effective,
            "relative_nnz": self.n_effective / self.n_visible,
            "entropy": self.entropy,
            "top_probability": self.top_probability,
            "decisive_share": (self.top_probability > 0.5).to(self.entropy.dtype),
            "first_sink_share": self.sink_share,
            "learned_sink_share": self.learned_sink,
        }

    @property
    def n_queries(self) -> int:
        """The number of queries of a head in all inputs together."""
        return self.largest.numel() // max(self.largest.shape[-2], 1)

    @cached_property
    def largest_logit(self) -> float:
        """The largest logit of all queries; nan if there is none."""
        known = self.largest[~self.largest.isnan()]
        return float(known.max()) if known.numel() else math.nan

    @property
    def notes(self) -> tuple[Fact, ...]:
        """Notes with the numbers of queries without statistics, and the reasons."""
        n_blind = int((self.n_visible == 0).sum())
        n_broken = int(((self.n_visible > 0) & self.entropy.isnan()).sum())
        notes = {"note.queries_without_keys": n_blind, "note.logits_not_finite": n_broken}
        return tuple(Fact(code, {"count": count}) for code, count in notes.items() if count)


def attention_statistics(
    q: torch.Tensor,
    k: torch.Tensor,
    rule: AttentionRule | None = None,
    *,
    positions: torch.Tensor | None = None,
    tolerances: Sequence[float] = (),
    left_out: torch.Tensor | None = None,
) -> AttentionStatistics:
    r"""Compute statistics of each query's attention: largest and second largest logit, selection, log-sum-exp, entropy and more.

    Logits are computed for a few queries at a time and not kept. Memory is that of q, k and a constant number of rows of keys:
    a map of queries by keys is never formed. Half precision is multiplied and summed in float32, other precisions in their own.
    On a GPU, a Triton kernel computes the same in one pass over blocks of keys, except with tolerances, keys left out, float64,
    or a bias or mask for each query.

    Args:
        q: (…, heads, queries, d) a torch tensor, after rotation and normalisation if the model has these.

        k: (…, key_heads, keys, d) a torch tensor, whose number of key heads divides the number of heads.

        rule: an `AttentionRule` with scale, causality, window, bias or mask; by default plain attention to all keys.

        positions: (queries,) the position of each query among the keys, for a sample of queries or the last ones; by default 0,
            1, 2, ….

        tolerances: tolerances of total variation for `n_negligible`, each at least 0 and below 1.

        left_out: (…, keys) booleans, the keys that `selected_beside` passes over, such as the sinks of each input.

    Returns:
        Tensors on the device of q. To check them, compute the softmax of the full map of logits in float64.

    Examples:
        >>> import torch
        >>> from marginlens.probe import AttentionRule, attention_statistics
        >>> q = k = 2.0 * torch.eye(4)[None]  # one head, four queries, four keys, width 4
        >>> statistics = attention_statistics(q, k, AttentionRule(scale=1.0, causal=True))
        >>> statistics.selected.tolist(), statistics.margin.tolist()
        ([[0, 1, 2, 3]], [[inf, 4.0, 4.0, 4.0]])
    """
    import torch

    applied = _Applied.of(q, k, rule or AttentionRule(), positions)
    for tolerance in tolerances:
        if not 0.0 <= tolerance < 1.0:
            raise InputError("tolerances", "numbers from 0 to below 1", tolerance)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        found = applied.empty(len(tolerances))
        if left_out is not None:
            left_out = _of_inputs(left_out, q, k)
            found |= applied.empty_beside()
        if applied.has_kernel and not tolerances and left_out is None:
            from marginlens.probe.heads.statistics_triton import kernel_sums

            found |= kernel_sums(applied.q, applied.k, applied.rule, applied.positions, applied.seen)
        else:
            for at, first_key, logits in applied.blocks():
                if left_out is not None:
                    _select_beside(logits, left_out, at, first_key, found)
                _row_statistics(logits, tolerances, applied, at, first_key, found)
        return _finished(applied, found, q.shape[:-1])


def received_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    log_sum_exp: torch.Tensor,
    rule: AttentionRule | None = None,
    *,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add up the attention that each key receives from all queries.

    Args:
        q: (…, heads, queries, d) the queries, as in `attention_statistics`.

        k: (…, key_heads, keys, d) the keys.

        rule: the rule of the layer, as in `attention_statistics`.

        positions: (queries,) the position of each query among the keys, as in `attention_statistics`.

        log_sum_exp: (…, heads, queries) from `attention_statistics`; infinite for queries that should not be counted.

    Examples:
        >>> import torch
        >>> from marginlens.probe import attention_statistics, received_attention
        >>> q, k = torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)  # all logits are 0: attention is even
        >>> received_attention(q, k, attention_statistics(q, k).log_sum_exp).round(decimals=4).tolist()
        [[1.0, 1.0, 1.0]]
    """
    import torch

    applied = _Applied.of(q, k, rule or AttentionRule(), positions)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        total = torch.zeros(applied.shape[:3] + applied.k.shape[2:3], dtype=applied.dtype, device=q.device)
        logs = log_sum_exp.to(applied.dtype).nan_to_num(nan=math.inf).reshape(applied.shape)
        for at, first_key, logits in applied.blocks():
            at_rows = logs[at][..., None]
            sums = logits.sub_(at_rows).exp_().masked_fill_(at_rows == math.inf, 0.0).sum(dim=-2)
            total[at[:3]][..., first_key : first_key + sums.shape[-1]] += sums
        return total.reshape(*q.shape[:-2], k.shape[-2])


# ---- logits, a few rows at a time


class _Applied(NamedTuple):
    """A rule applied to queries (B, G, R, T, d) and keys (B, G, S, d), with R query heads for each of G key heads."""

    q: torch.Tensor
    k: torch.Tensor
    rule: AttentionRule
    positions: torch.Tensor  # (T,)
    shape: tuple[int, ...]  # (B, G, R, T)
    dtype: torch.dtype  # of logits and sums
    seen: (
        torch.Tensor | None
    )  # (B or 1, S or 1) keys that the mask hides from some queries at most; None without a mask

    @classmethod
    def of(cls, q: torch.Tensor, k: torch.Tensor, rule: AttentionRule, positions: torch.Tensor | None) -> _Applied:
        import torch

        for name, value, axes in (("q", q, "heads, queries"), ("k", k, "key_heads, keys")):
            is_tensor = isinstance(value, torch.Tensor)
            if not is_tensor or value.ndim < 3 or not value.numel() or not value.is_floating_point():
                got = f"shape {tuple(value.shape)} of {value.dtype}" if is_tensor else type(value).__name__
                raise InputError(
                    name,
                    f"a tensor of numbers (…, {axes}, d), none of them 0",
                    got,
                    "A fused kernel that hides them cannot be read: give what enters it.",
                )
        heads, key_heads = q.shape[-3], k.shape[-3]
        if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1] or heads % key_heads:
            raise InputError(
                "k",
                f"keys for queries of shape {tuple(q.shape)}: the same first axes and d, and a number of heads that divides {heads}",
                f"shape {tuple(k.shape)}",
            )
        n_queries, n_keys = q.shape[-2], k.shape[-2]
        by_position = rule.causal or rule.window is not None or getattr(rule.bias, "ndim", 0) == 1
        if positions is None and by_position and n_queries != n_keys:
            raise InputError(
                "positions",
                f"given where {n_queries} queries attend to {n_keys} keys by position",
                None,
                "For the last queries give torch.arange(keys - queries, keys).",
            )
        places = torch.as_tensor(torch.arange(n_queries) if positions is None else positions, device=q.device)
        if places.shape != (n_queries,) or places.is_floating_point():
            raise InputError(
                "positions", f"{n_queries} whole numbers, one for each query", f"shape {tuple(places.shape)}"
            )
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), torch.float32)
        keys = k.detach().reshape(-1, key_heads, n_keys, k.shape[-1])
        queries = q.detach().reshape(len(keys), key_heads, heads // key_heads, n_queries, q.shape[-1])
        scale = 1.0 / math.sqrt(q.shape[-1]) if rule.scale is None else rule.scale
        bias, sinks, mask = (
            _grouped(value, name, queries, n_keys)
            for name, value in (("bias", rule.bias), ("sinks", rule.sinks), ("mask", rule.mask))
        )
        rule = replace(rule, scale=scale, bias=bias, sinks=sinks, mask=mask)
        seen = None if rule.mask is None else sees(rule.mask).flatten(1, -2).any(dim=1)
        return cls(queries, keys, rule, places, tuple(queries.shape[:-1]), dtype, seen)

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], int, Any]]:
        """Yield logits by blocks: the part of (B, G, R, T), the first key, and the logits (b, g, R, t, s).

        Keys that no query of the block can see by its position are left out; other hidden keys have the logit `_lowest`.
        """
        n_batch, n_groups, n_shared, n_queries = self.shape
        n_keys = self.k.shape[2]
        entries = _BLOCK_ENTRIES.get(self.q.device.type, _BLOCK_ENTRIES["cuda"])
        row = n_shared * n_keys  # entries of one query, of all heads that share keys
        rows = max(1, min(n_queries, max(_MIN_ROWS // n_shared, entries // row), entries * 8 // row))
        groups = max(1, min(n_groups, entries // (rows * row)))
        batch = max(1, min(n_batch, entries // (n_groups * rows * row)))
        for b in range(0, n_batch, batch):
            for g in range(0, n_groups, groups):
                for t in range(0, n_queries, rows):
                    at = (slice(b, b + batch), slice(g, g + groups), slice(None), slice(t, min(t + rows, n_queries)))
                    keys = self._reach(self.positions[at[3]], n_keys)
                    yield at, keys.start, self._logits(at, keys)

    def _reach(self, positions: torch.Tensor, n_keys: int) -> slice:
        """Return the keys that queries at these positions may see."""
        low, high = 0, n_keys
        if self.rule.causal or self.rule.window is not None:
            least, most = int(positions.min()), int(positions.max())
            behind = 1 if self.rule.causal else self.rule.window or n_keys
            high = min(high, max(most + behind, 1))
            low = 0 if self.rule.window is None else min(max(0, least - self.rule.window + 1), high - 1)
        return slice(low, high)

    @property
    def sees_by_place(self) -> bool:
        """True if what a query sees follows from its position and the padding of keys."""
        rule = self.rule
        is_padding = rule.mask is None or (rule.mask.dtype.itemsize == 1 and rule.mask.shape[1:4] == (1, 1, 1))
        return is_padding and (rule.bias is None or (not callable(rule.bias) and rule.bias.ndim == 2))

    @property
    def has_kernel(self) -> bool:
        """True if a GPU's kernel can make the sums."""
        on_gpu = self.q.is_cuda and self.q.dtype == self.k.dtype and self.dtype.itemsize == 4
        return on_gpu and self.sees_by_place and find_spec("triton") is not None

    def n_visible(self) -> torch.Tensor:
        """Return the number of keys that each query sees, (B or 1, 1, 1, T), if it follows from position and padding."""
        import torch

        places, n_keys = self.positions, self.k.shape[2]
        low, high = torch.zeros_like(places), torch.full_like(places, n_keys)
        if self.rule.causal:
            high = (places + 1).clamp(0, n_keys)
        if self.rule.window is not None:
            low, high = (places - self.rule.window + 1).clamp(0, n_keys), high.minimum(places + self.rule.window)
        high = high.maximum(low)
        if self.seen is None:
            return (high - low)[None, None, None]
        upto = torch.nn.functional.pad(self.seen.expand(-1, n_keys).cumsum(dim=-1), (1, 0))  # (B or 1, S + 1)
        return (upto[:, high] - upto[:, low])[:, None, None]

    def _logits(self, at: tuple[slice, ...], keys: slice) -> torch.Tensor:
        import torch

        rule, lowest = self.rule, _lowest(self.dtype)
        queries = self.q[at].to(self.dtype) * rule.scale
        b, g, n_shared, t, d = queries.shape
        turned = self.k[at[:2]][:, :, keys].to(self.dtype).transpose(-1, -2)
        if b * g > _MANY_PRODUCTS:
            turned = turned.contiguous()
        logits = queries.reshape(b, g, n_shared * t, d) @ turned
        logits = logits.view(b, g, n_shared, t, -1)
        places = torch.arange(keys.start, keys.stop, device=logits.device)
        distance = self.positions[at[3], None] - places  # (t, s)
        if rule.bias is not None:
            if callable(rule.bias):
                part = _grouped(rule.bias(at[3], keys), "bias", self.q[:, :, :, at[3]], keys.stop - keys.start)
                logits += _part(part, at[:3])
            elif rule.bias.ndim == 2:  # slopes (G, R)
                logits -= rule.bias[at[1]].to(logits)[:, :, None, None] * distance
            else:
                logits += _part(rule.bias, (*at, keys))
        if rule.softcap is not None:
            logits.div_(rule.softcap).tanh_().mul_(rule.softcap)
        if rule.mask is not None:
            mask = _part(rule.mask, (*at, keys))
            if mask.dtype is not torch.bool:
                logits += mask
            logits.masked_fill_(~sees(mask), lowest)
        if rule.causal:  # the keys before all of these queries need no mask
            least = min(max(int(self.positions[at[3]].min()) + 1 - keys.start, 0), keys.stop - keys.start)
            logits[..., least:].masked_fill_(distance[:, least:] < 0, lowest)
        if rule.window is not None:
            logits.masked_fill_(distance.abs() >= rule.window, lowest)
        return logits

    def empty(self, n_tolerances: int) -> dict[str, torch.Tensor]:
        """Allocate the tensors that rows are written to."""
        import torch

        def new(*first: int, dtype: torch.dtype = self.dtype) -> torch.Tensor:
            return torch.empty((*first, *self.shape), dtype=dtype, device=self.q.device)

        numbers = {name: new() for name in ("largest", "margin", "rest", "mean_gap", "squares", "first_logit")}
        counts = {name: new(dtype=torch.int64) for name in ("selected", "n_visible")}
        if self.sees_by_place:
            counts["n_visible"].copy_(self.n_visible())
        return {**numbers, **counts, "n_negligible": new(n_tolerances, dtype=torch.int64)}

    def empty_beside(self) -> dict[str, torch.Tensor]:
        """Allocate the tensors for the selections beside the keys that are left out."""
        import torch

        kinds = {"selected_beside": torch.int64, "margin_beside": self.dtype}
        return {name: torch.empty(self.shape, dtype=kind, device=self.q.device) for name, kind in kinds.items()}


def _of_inputs(left_out: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return the keys that are left out as (B, S) booleans."""
    expected = (*queries.shape[:-3], keys.shape[-2])
    if tuple(left_out.shape) != expected:
        raise InputError("left_out", f"booleans (…, keys), here of shape {expected}", f"shape {tuple(left_out.shape)}")
    return left_out.to(device=queries.device, dtype=bool).reshape(-1, expected[-1])


def _lowest(dtype: torch.dtype) -> float:
    """Return the logit of a hidden key: finite, since minus infinity times a probability of 0 is not a number."""
    import torch

    return float(torch.finfo(dtype).min) / 4


def _grouped(
    value: torch.Tensor | Callable[..., torch.Tensor] | None, name: str, queries: torch.Tensor, n_keys: int
) -> torch.Tensor | Callable[..., torch.Tensor] | None:
    """Reshape a tensor of heads to the axes (B, G, R, T, S) of grouped queries; axes of length 1 stay; (heads,) becomes (G, R)."""
    import torch

    if value is None or callable(value):
        return value
    n_batch, n_groups, n_shared, n_queries, _ = queries.shape
    n_heads = n_groups * n_shared
    tensor = torch.as_tensor(value, device=queries.device)
    if tensor.ndim == 1 and name != "mask" and len(tensor) == n_heads:
        return tensor.reshape(n_groups, n_shared)
    if name == "sinks":
        raise InputError(name, f"({n_heads},) one logit for each head", f"shape {tuple(tensor.shape)}")
    wide = tensor[(None,) * max(0, 4 - tensor.ndim)]
    wide = wide.flatten(0, -4) if wide.ndim > 4 else wide
    if any(size not in (1, full) for size, full in zip(wide.shape, (n_batch, n_heads, n_queries, n_keys), strict=True)):
        raise InputError(
            name,
            f"a tensor that broadcasts to (…, {n_heads} heads, {n_queries} queries, {n_keys} keys)",
            f"shape {tuple(tensor.shape)}",
            "Padding (inputs, keys) is mask[:, None, None, :].",
        )
    return wide.unflatten(1, (n_groups, n_shared) if wide.shape[1] > 1 else (1, 1))


def _part(tensor: torch.Tensor, at: Sequence[slice]) -> torch.Tensor:
    """Return the part of a tensor at slices of its axes; axes of length 1 are kept whole."""
    return tensor[tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, at, strict=False))]


def sees(mask: torch.Tensor) -> torch.Tensor:
    """Return whether a mask lets a query see a key: it is True, or adds more than about the lowest number of its precision or float32."""
    import torch

    if mask.dtype is torch.bool:
        return mask
    return mask > max(torch.finfo(mask.dtype).min, torch.finfo(torch.float32).min) / 2


# ---- numbers of rows


def _row_statistics(
    logits: torch.Tensor,
    tolerances: Sequence[float],
    applied: _Applied,
    at: tuple[slice, ...],
    first_key: int,
    found: dict[str, torch.Tensor],
) -> None:
    """Write the sums over keys of rows of logits (…, t, s), which are used up, to their place."""
    import torch

    lowest = _lowest(logits.dtype)
    if applied.rule.mask is not None or applied.rule.bias is not None:  # which may hold minus infinity
        logits.clamp_(min=lowest)
    if not applied.sees_by_place:
        found["n_visible"][at] = (~(logits <= lowest / 2)).sum(dim=-1)
    best = logits.topk(min(2, logits.shape[-1]), dim=-1)
    largest, selected = best.values[..., :1], best.indices[..., :1]
    found["first_logit"][at] = _first_logit(logits, lowest, applied, at, first_key)
    found["largest"][at], found["selected"][at] = largest[..., 0], selected[..., 0] + first_key
    second = best.values[..., -1]
    sees_one = (second <= lowest / 2) if best.values.shape[-1] == 2 else torch.ones_like(second, dtype=torch.bool)
    found["margin"][at] = (largest[..., 0] - second).masked_fill(sees_one, math.inf)
    # from here on without the largest itself: 1 + rest is then exact to rounding where rest is 1e-300
    below = logits.sub_(largest).scatter_(-1, selected, lowest)
    weights = below.exp()
    found["rest"][at] = weights.sum(dim=-1)
    found["squares"][at] = torch.linalg.vector_norm(weights, dim=-1).square()
    if tolerances:
        sinks = applied.rule.sinks
        total = 1.0 + found["rest"][at]
        if sinks is not None:
            total = total + (sinks.to(logits)[at[1]][:, :, None] - largest[..., 0]).exp()
        found["n_negligible"][(slice(None), *at)] = _n_negligible(weights, tolerances, total, found["n_visible"][at])
    found["mean_gap"][at] = -below.mul_(weights).sum(dim=-1)


def _select_beside(
    logits: torch.Tensor, left_out: torch.Tensor, at: tuple[slice, ...], first_key: int, found: dict[str, torch.Tensor]
) -> None:
    """Write the best key of rows of logits (b, g, r, t, s) among those that are not left out, and its lead, to their place."""
    import torch

    lowest = _lowest(logits.dtype)
    passed_over = left_out[at[0], None, None, None, first_key : first_key + logits.shape[-1]]
    # A second key, also if there is only one.
    best = torch.nn.functional.pad(logits.masked_fill(passed_over, lowest), (0, 1), value=lowest).topk(2, dim=-1)
    first, second = best.values.unbind(dim=-1)
    found["selected_beside"][at] = (best.indices[..., 0] + first_key).masked_fill(first <= lowest / 2, -1)
    found["margin_beside"][at] = (first - second).masked_fill(second <= lowest / 2, math.inf)


def _first_logit(
    logits: torch.Tensor, lowest: float, applied: _Applied, at: tuple[slice, ...], first_key: int
) -> torch.Tensor:
    """Return the logits of the first key that is not hidden from all queries, minus infinity if it is not seen."""
    if applied.seen is None:
        first = logits[..., 0] if first_key == 0 else logits.new_full(logits.shape[:-1], lowest)
    else:
        first_seen = _part(applied.seen.int().argmax(dim=-1), at[:1])
        place = first_seen[:, None, None, None, None] - first_key  # (b, 1, 1, 1, 1)
        inside = (place >= 0) & (place < logits.shape[-1])
        first = logits.take_along_dim(place.clamp(0, logits.shape[-1] - 1), dim=-1).where(inside, lowest)[..., 0]
    return first.masked_fill(first <= lowest / 2, -math.inf)


def _n_negligible(
    weights: torch.Tensor, tolerances: Sequence[float], total: torch.Tensor, n_visible: torch.Tensor
) -> torch.Tensor:
    """Return how many keys with the smallest attention add up to at most a tolerance, (n_tolerances, …).

    Args:
        weights: (…, s) the exponentials of logits, 0 for hidden keys and in place of the largest, which is 1.

        total: (…) their sum, including the largest.

        n_visible: (…) the number of visible keys, including the largest.
    """
    import torch

    on_cpu = weights.device.type == "cpu"  # where NumPy sorts several times faster than torch
    ordered = torch.from_numpy(np.sort(weights.numpy(), axis=-1)) if on_cpu else weights.sort(dim=-1).values
    sums = ordered.cumsum(dim=-1)
    budgets = (total[..., None] * total.new_tensor(tolerances)).contiguous()
    n_hidden = weights.shape[-1] - n_visible + 1  # zeros that are no gain, that of the largest among them
    counts = torch.searchsorted(sums, budgets, right=True) - n_hidden[..., None]
    fits_all = 1.0 + sums[..., -1:] <= budgets  # beside a learned sink that has nearly all
    return torch.where(fits_all, n_visible[..., None], counts.clamp(min=0)).movedim(-1, 0)


def _finished(applied: _Applied, found: dict[str, torch.Tensor], shape: Sequence[int]) -> AttentionStatistics:
    """Compute the statistics from the sums over keys."""
    import torch

    largest, rest, n_visible = found["largest"], found["rest"], found["n_visible"]
    is_known = (n_visible > 0) & rest.isfinite() & largest.isfinite()
    logs = torch.log1p(rest)
    of_keys = largest + logs
    log_sum_exp, share = of_keys, torch.ones_like(rest)  # of attention that goes to keys
    learned = torch.zeros_like(rest)
    if applied.rule.sinks is not None:
        sinks = applied.rule.sinks.to(rest)[None, :, :, None]
        log_sum_exp = torch.logaddexp(of_keys, sinks)
        share, learned = torch.sigmoid(of_keys - sinks), torch.sigmoid(sinks - of_keys)
    rounding = _rounding(applied)
    unknown = torch.nan
    numbers = {
        "largest": largest,
        "margin": found["margin"],
        "rounding": rounding,
        "log_sum_exp": log_sum_exp,
        "entropy": logs + found["mean_gap"] / (1.0 + rest),
        "n_effective": (1.0 + rest).square() / (1.0 + found["squares"]),
        "top_probability": share / (1.0 + rest),
        "rest_probability": (share * (rest / (1.0 + rest)) + learned).clamp(max=1.0),
        "sink_share": (found["first_logit"] - log_sum_exp).exp(),
        "learned_sink": learned,
    }
    if "margin_beside" in found:
        numbers["margin_beside"] = found["margin_beside"]
    made = {name: value.masked_fill(~is_known, unknown).reshape(shape) for name, value in numbers.items()}
    if "selected_beside" in found:
        made["selected_beside"] = found["selected_beside"].masked_fill(~is_known, -1).reshape(shape)
    return AttentionStatistics(
        selected=found["selected"].masked_fill(~is_known, -1).reshape(shape),
        tied=(found["margin"] <= rounding).logical_and(is_known).reshape(shape),
        n_visible=n_visible.reshape(shape),
        n_negligible=found["n_negligible"].reshape(-1, *shape),
        **made,
    )


def _rounding(applied: _Applied) -> torch.Tensor:
    """Return a bound on rounding, (B, G, R, T): a few eps times the lengths of each query and of the longest key, and the largest bias."""
    import torch

    rule, eps = applied.rule, _ROUNDINGS * torch.finfo(applied.dtype).eps
    lengths, longest = (torch.linalg.vector_norm(x, dim=-1, dtype=applied.dtype) for x in (applied.q, applied.k))
    longest = longest if applied.seen is None else longest.masked_fill(~applied.seen[:, None], 0.0)
    rounding = eps * abs(rule.scale or 1.0) * lengths * longest.amax(dim=-1)[:, :, None, None]
    if rule.bias is None or callable(rule.bias):
        return rounding
    if rule.bias.ndim == 2:
        return rounding + eps * rule.bias.to(rounding).abs()[:, :, None] * applied.positions.clamp(min=1)
    return rounding + eps * rule.bias.nan_to_num(posinf=0.0, neginf=0.0).abs().amax(dim=-1).to(rounding)
