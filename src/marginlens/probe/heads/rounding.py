"""Certificates that rounding the keys of a head to a few bits changes no selection, and bounds on how far its attention moves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import reject, whole_number
from marginlens.probe.heads.statistics import (
    AttentionRule,
    AttentionStatistics,
    attention_statistics,
    largest_logits,
    output_ranges,
)
from marginlens.result import Described

EXACT_KEYS = 2  # that are read for a query whose selection is to be resolved


class RoundedKeys(NamedTuple):
    """Keys (…, keys, d) as they are stored, and the length (…, keys) of what rounding took from each."""

    keys: Any
    error: Any


def rotation_matrix(width: int, rng: Any = 0) -> Any:
    """(d, d) a random orthogonal matrix that spreads large coordinates over all: Hadamard's with random signs where d is a power of 2."""
    import torch
    from scipy.linalg import hadamard

    generator = np.random.default_rng(rng)
    if width & (width - 1) == 0:
        return torch.from_numpy(hadamard(width) / math.sqrt(width) * generator.choice([-1.0, 1.0], size=width))
    return torch.from_numpy(np.linalg.qr(generator.normal(size=(width, width)))[0])


def round_keys(k: Any, bits: int, rotation: Any = None, *, centre: Any = None) -> RoundedKeys:
    r"""Symmetric rounding of each key to whole multiples of its own step, the largest coordinate over 2^(bits - 1) - 1.

    Args:
        k: (…, keys, d). bits: at least 2, of each coordinate; each key has its step beside them.
        rotation: (d, d) orthogonal, which is applied before rounding and undone behind it; queries and keys are then stored turned.
        centre: (…, 1, d) a vector for each head, such as the mean of its keys, that is taken from all keys before and kept exactly. It
            moves all logits of a query alike, so that attention needs it only beside learned sinks or a cap.
    """
    whole_number(bits, "bits", at_least=2)
    around = k if centre is None else k - centre
    turned = around if rotation is None else around @ rotation.to(k).T
    step = turned.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    rounded = (turned / step.masked_fill(step == 0.0, 1.0)).round() * step
    rounded = rounded if rotation is None else rounded @ rotation.to(k)
    rounded = rounded if centre is None else rounded + centre
    return RoundedKeys(rounded, (rounded - k).norm(dim=-1))


@dataclass(frozen=True, eq=False, repr=False)
class RoundingCertificate(Described):
    r"""What rounding the keys does to every query, as torch tensors (…, heads, queries).

    A key whose rounding took a vector of length :math:`\rho_t` has a logit within :math:`r_t = c\|q\|\rho_t` of the rounded one,
    :math:`\hat l_t`. Only these lengths are used, one number for each key, not what was taken.

    Attributes:
        certified: with :math:`\alpha` the key of the largest rounded logit and :math:`l_\alpha` its exact one, :math:`l_\alpha > \hat l_t +
            r_t` for all others: it is the key that exact attention selects. One exact key is read for a query.
        robust: :math:`l_\alpha - r_\alpha > l_t + r_t` for all others: no error of these lengths changes the selection, whatever its
            direction. No exact key is read.
        resolved: the largest exact logit of the `n_exact` keys of largest :math:`\hat l_t + r_t` exceeds that of all others: then it is
            the one that exact attention selects, whether rounding changed it or not. So many exact keys are read for a query.
        changed: another key is selected after rounding; never where certified.
        variation: an upper bound on the total variation between attention before and after: the output of the head moves by at
            most twice this times the longest value.
        decided: the query sees at least two keys, and exact attention is not tied; the others have no selection to keep.
    """

    certified: Any
    robust: Any
    resolved: Any
    changed: Any
    variation: Any
    decided: Any
    quantities = "{decided.sum} decisions, certified={certified_share:.4f}, robust={robust_share:.4f}, changed={changed_share:.4f}"

    def share(self, name: str) -> float:
        """The share of decisions that are certified, robust, resolved or changed."""
        return float((getattr(self, name) & self.decided).sum()) / max(1, int(self.decided.sum()))

    @property
    def certified_share(self) -> float:
        return self.share("certified")

    @property
    def resolved_share(self) -> float:
        return self.share("resolved")

    @property
    def robust_share(self) -> float:
        return self.share("robust")

    @property
    def changed_share(self) -> float:
        return self.share("changed")


def certify_rounding(
    q: Any,
    k: Any,
    rounded: RoundedKeys,
    rule: AttentionRule | None = None,
    *,
    positions: Any = None,
    n_exact: int = EXACT_KEYS,
) -> RoundingCertificate:
    r"""Which selections rounding the keys cannot have changed, and how far attention can have moved, at any length.

    Logits with their radius, :math:`\hat l_t + r_t`, are those of a query and keys with one more coordinate, :math:`\|q\|` and
    :math:`\rho_t`, so that `attention_statistics` finds the largest but for the selected. From its log-sum-exp :math:`\hat\lambda'` and
    that of the rounded logits,

    .. math:: \mathrm{TV}(s, \hat s) \le \min\big(\tanh(\tfrac12 \max_t r_t),\ \textstyle\sum_t \hat s_t (e^{r_t} - 1) = e^{\hat\lambda' -
        \hat\lambda} - 1\big):

    the first is the largest over the corners of a box of logits of one width; the second is the distance of the measures before they are
    scaled to sum 1, which bounds the total variation once one of them has sum 1. With :math:`R = \max_t r_t` a set of keys with the share P
    of attention can get :math:`g(P) = P / (P + (1 - P) e^{-2R}) - P` more, which is largest, :math:`\tanh(R/2)`, at
    :math:`P^* = 1/(1 + e^R)`. Where all keys but the selected one have together :math:`P < P^*`, no set is nearer to that than they or the
    selected one, and the larger of g(P) and g(1 - P) is the bound. With a cap only :math:`\tanh(R/2)` is used.

    Args:
        q, k, rule, positions: as in `attention_statistics`, with a bias that is no function.
        rounded: what `round_keys` gave, or keys stored in any other way with the lengths of their errors.
        n_exact: keys whose exact logits `resolved` may use for a query.
    """
    import torch

    rule = rule or AttentionRule()
    if callable(rule.bias):
        raise reject("rule", "one whose bias is a tensor", "one whose bias is a function")
    scale = abs(1.0 / math.sqrt(q.shape[-1]) if rule.scale is None else rule.scale)
    rule = replace(rule, scale=scale if rule.scale is None else rule.scale)
    plain = replace(rule, softcap=None)  # a cap keeps the order of logits
    lengths = q.to(torch.promote_types(q.dtype, torch.float32)).norm(dim=-1)  # (…, heads, queries)
    n_shared = q.shape[-3] // k.shape[-3]
    exact, hat = (attention_statistics(q, keys, plain, positions=positions) for keys in (k, rounded.keys))
    upper_exact, upper = (
        attention_statistics(*_augmented(q, keys, rounded.error, lengths, plain), plain, positions=positions)
        for keys in (k, rounded.keys)
    )
    slack = exact.rounding + upper.rounding
    of_chosen = _logit_at(q, k, hat.selected, plain, positions)
    certified = of_chosen - slack > _largest_but(upper, hat.selected)
    error = rounded.error.to(lengths).repeat_interleave(n_shared, dim=-2)  # (…, heads, keys)
    radius = scale * lengths * error.gather(-1, exact.selected.clamp(min=0))
    robust = exact.largest - radius - slack > _largest_but(upper_exact, exact.selected)
    best = largest_logits(
        *_augmented(q, rounded.keys, rounded.error, lengths, plain), n_exact + 1, plain, positions=positions
    )
    read = torch.stack([_logit_at(q, k, best.keys[..., j], plain, positions) for j in range(n_exact)], dim=-1)
    read = read.masked_fill(best.keys[..., :-1] < 0, -math.inf).amax(dim=-1)
    resolved = read - slack > best.logits[..., -1]
    widest = scale * lengths * error.amax(dim=-1, keepdim=True)
    variation = torch.tanh(0.5 * widest)
    if rule.softcap is None:
        rest = hat.rest_probability
        gained = torch.maximum(_gain(rest, widest), _gain(1.0 - rest, widest))
        variation = torch.where(rest < torch.sigmoid(-widest), gained, variation)
        variation = variation.minimum(torch.expm1(upper.log_sum_exp - hat.log_sum_exp))
    decided = (exact.n_visible >= 2) & ~exact.tied & (exact.selected >= 0)
    return RoundingCertificate(
        certified=certified & decided,
        robust=robust & decided,
        resolved=resolved & decided,
        changed=(hat.selected != exact.selected) & decided,
        variation=variation,
        decided=decided,
    )


def output_bound(q: Any, k: Any, values: Any, rounded: RoundedKeys, rule: AttentionRule | None = None) -> Any:
    """(…, heads, queries) how far the output of a head can have moved, in length, when its keys were rounded: a bound.

    In each coordinate it is the largest over all corners of the box of logits (`output_ranges`), exactly; the length adds them up. It takes
    the work of attention for every coordinate of the values, so it is made for a few inputs.

    Args:
        q, k, rounded, rule: as in `certify_rounding`. values: (…, key_heads, keys, d_v).
    """
    import torch

    before = torch.zeros_like(rounded.error)
    least, most = output_ranges(q, rounded.keys, values, rounded.error, rule)
    now, _ = output_ranges(q, rounded.keys, values, before, rule)
    return torch.linalg.vector_norm(torch.maximum(most - now, now - least), dim=-1)


def _gain(share: Any, radius: Any) -> Any:
    """How much attention a set of keys that has this share can get beside it when its logits rise, and all others fall, by the radius."""
    import torch

    return share / (share + (1.0 - share) * torch.exp(-2.0 * radius)).clamp(min=1e-30) - share


def _augmented(q: Any, keys: Any, error: Any, lengths: Any, rule: AttentionRule) -> tuple[Any, Any]:
    """Queries and keys whose logits are those given with their radius added."""
    import torch

    sign = 1.0 if (rule.scale or 1.0) > 0.0 else -1.0
    wide = torch.promote_types(q.dtype, torch.float32)
    queries = torch.cat((q.to(wide), sign * lengths.to(wide)[..., None]), dim=-1)
    return queries, torch.cat((keys.to(wide), error.to(wide)[..., None]), dim=-1)


def _largest_but(statistics: AttentionStatistics, key: Any) -> Any:
    """The largest logit of a key other than the given one; minus infinity where there is none."""
    import torch

    return torch.where(statistics.selected == key, statistics.second, statistics.largest)


def _logit_at(q: Any, k: Any, key: Any, rule: AttentionRule, positions: Any) -> Any:
    """(…, heads, queries) the logit of one key for each query."""
    import torch

    wide = torch.promote_types(q.dtype, torch.float32)
    chosen = key.clamp(min=0)
    per_head = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3) if k.shape[-3] != q.shape[-3] else k
    keys = per_head.to(wide).take_along_dim(chosen[..., None], dim=-2)  # (…, heads, queries, d)
    logits = (q.to(wide) * keys).sum(dim=-1) * rule.scale
    for term in (rule.bias, rule.mask):
        if term is None or term.dtype is torch.bool:
            continue
        if term.ndim == 1:
            places = torch.arange(q.shape[-2], device=q.device) if positions is None else positions
            logits = logits + term.to(logits)[:, None] * (chosen - places)
        else:
            full = term.expand(*q.shape[:-1], k.shape[-2])
            logits = logits + full.take_along_dim(chosen[..., None], dim=-1)[..., 0]
    return logits
