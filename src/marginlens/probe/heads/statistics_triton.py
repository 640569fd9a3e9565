"""The sums over keys of `attention_statistics` in one pass on a GPU, as a Triton kernel; imported if q and k are on a CUDA device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marginlens.errors import missing_extra

if TYPE_CHECKING:
    from marginlens.probe.heads.statistics import AttentionRule

try:
    import torch
    import triton
    import triton.language as tl
except ImportError as problem:
    raise missing_extra("triton", "probe", "Summing attention on a GPU") from problem

LOWEST = tl.constexpr(-1e30)  # of a hidden key: finite, also times the keys of a block
_ROWS, _COLUMNS, _WARPS, _STAGES = 64, 128, 4, 3  # of a block of logits; the fastest of eight on an H200


@triton.jit
def _add_block(
    q, k_of_head, keys, positions, seen_of_input, slope, scale, softcap, first, n_keys, state,
    HAS_EDGES: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr,
    PADDED: tl.constexpr, K_ROW: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Add one block of keys to the sums; the sums so far and those of the block are each relative to their own largest logit."""
    largest, gap, selected, rest, mean_gap, squares, first_logit = state
    columns = tl.arange(0, D)
    k = tl.load(
        k_of_head + keys[None, :].to(tl.int64) * K_ROW + columns[:, None],
        mask=(keys[None, :] < n_keys) & (columns[:, None] < WIDTH),
        other=0.0,
    )
    logits = tl.dot(q, k, input_precision="ieee") * scale
    distance = positions[:, None] - keys[None, :]
    if SLOPED:
        logits -= slope * distance
    if CAPPED:  # tanh by an exponential that cannot overflow
        shrunk = tl.exp(-2.0 * tl.abs(logits) / softcap)
        size = softcap * (1.0 - shrunk) / (1.0 + shrunk)
        logits = tl.where(logits < 0.0, -size, size)
    if HAS_EDGES:
        hidden = keys[None, :] >= n_keys
        if CAUSAL:
            hidden = hidden | (distance < 0)
        if WINDOW > 0:
            hidden = hidden | (tl.abs(distance) >= WINDOW)
        logits = tl.where(hidden, LOWEST, logits)
    if PADDED:
        is_seen = tl.load(seen_of_input + keys, mask=keys < n_keys, other=0)
        logits = tl.where(is_seen[None, :] != 0, logits, LOWEST)
    if (first >= tl.min(keys)) & (first <= tl.max(keys)):
        first_logit = tl.max(tl.where(keys[None, :] == first, logits, LOWEST), axis=1)
    best, place = tl.max(logits, axis=1, return_indices=True)
    # without the largest itself, so that 1 + rest keeps the digits of a small rest
    below = tl.where(tl.arange(0, keys.shape[0])[None, :] == place[:, None], LOWEST, logits) - best[:, None]
    weights = tl.exp(below)
    block_gap = -tl.max(below, axis=1)
    block_rest, block_mean, block_squares = (
        tl.sum(weights, 1),
        -tl.sum(weights * below, 1),
        tl.sum(weights * weights, 1),
    )
    # the side with the smaller largest logit is scaled down; its own largest weighs 1
    is_new = best > largest
    step = tl.abs(best - largest)
    factor = tl.exp(-step)
    low_rest, low_squares = tl.where(is_new, rest, block_rest), tl.where(is_new, squares, block_squares)
    low_mean = tl.where(is_new, mean_gap, block_mean)
    rest = tl.where(is_new, block_rest, rest) + (1.0 + low_rest) * factor
    mean_gap = tl.where(is_new, block_mean, mean_gap) + (low_mean + step * (1.0 + low_rest)) * factor
    squares = tl.where(is_new, block_squares, squares) + (1.0 + low_squares) * factor * factor
    gap = tl.minimum(tl.where(is_new, block_gap, gap), step)
    selected = tl.where(is_new, tl.min(keys) + place, selected)
    return tl.maximum(best, largest), gap, selected, rest, mean_gap, squares, first_logit


@triton.jit
def _sums_kernel(
    q_start, k_start, positions_start, seen_start, slopes_start, first_start, out_start, selected_start,
    scale, softcap, n_heads, n_shared, n_queries, n_keys,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PADDED: tl.constexpr,
    WIDTH: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum over the keys for one block of queries of one head: q (B, H, T, d) and k (B, G, S, d) are contiguous."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows of causal attention first
    head = tl.program_id(1).to(tl.int64)
    batch = head // n_heads
    key_head = head // n_shared
    rows = block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, D)
    q = tl.load(
        q_start + (head * n_queries + rows[:, None]) * WIDTH + columns[None, :],
        mask=(rows[:, None] < n_queries) & (columns[None, :] < WIDTH),
        other=0.0,
    )
    k_of_head = k_start + key_head * n_keys * WIDTH
    seen_of_input = seen_start + batch * n_keys
    positions = tl.load(positions_start + tl.minimum(rows, n_queries - 1))
    slope = tl.load(slopes_start + head % n_heads) if SLOPED else 0.0
    first = tl.load(first_start + batch)
    low, high = 0, n_keys  # keys that some of these queries see, and in between those that all of them see
    whole_low, whole_high = 0, n_keys
    least, most = tl.min(positions), tl.max(positions)
    if CAUSAL:
        high, whole_high = tl.minimum(most + 1, n_keys), tl.minimum(least + 1, n_keys)
    if WINDOW > 0:
        low, whole_low = tl.maximum(least - WINDOW + 1, 0), tl.maximum(most - WINDOW + 1, 0)
        high, whole_high = tl.minimum(high, most + WINDOW), tl.minimum(whole_high, least + WINDOW)
    low = low // COLUMNS * COLUMNS
    whole_low = tl.minimum((whole_low + COLUMNS - 1) // COLUMNS * COLUMNS, high)
    whole_high = tl.maximum(whole_high // COLUMNS * COLUMNS, whole_low)
    nothing = tl.zeros([ROWS], tl.float32)
    state = (
        nothing + LOWEST,
        nothing - LOWEST,
        tl.zeros([ROWS], tl.int32) - 1,
        nothing,
        nothing,
        nothing,
        nothing + LOWEST,
    )
    for start in range(low, whole_low, COLUMNS):
        state = _add_block(
            q, k_of_head, start + tl.arange(0, COLUMNS), positions, seen_of_input, slope, scale, softcap, first, n_keys, state,
            True, CAUSAL, WINDOW, CAPPED, SLOPED, PADDED, WIDTH, WIDTH, D,
        )  # fmt: skip
    for start in range(whole_low, whole_high, COLUMNS):
        state = _add_block(
            q, k_of_head, start + tl.arange(0, COLUMNS), positions, seen_of_input, slope, scale, softcap, first, n_keys, state,
            False, CAUSAL, WINDOW, CAPPED, SLOPED, PADDED, WIDTH, WIDTH, D,
        )  # fmt: skip
    for start in range(whole_high, high, COLUMNS):
        state = _add_block(
            q, k_of_head, start + tl.arange(0, COLUMNS), positions, seen_of_input, slope, scale, softcap, first, n_keys, state,
            True, CAUSAL, WINDOW, CAPPED, SLOPED, PADDED, WIDTH, WIDTH, D,
        )  # fmt: skip
    largest, gap, selected, rest, mean_gap, squares, first_logit = state
    place, is_row = head * n_queries + rows, rows < n_queries
    n_rows = tl.num_programs(1).to(tl.int64) * n_queries
    tl.store(selected_start + place, selected, mask=is_row)
    tl.store(out_start + place, largest, mask=is_row)
    tl.store(out_start + n_rows + place, gap, mask=is_row)
    tl.store(out_start + 2 * n_rows + place, rest, mask=is_row)
    tl.store(out_start + 3 * n_rows + place, mean_gap, mask=is_row)
    tl.store(out_start + 4 * n_rows + place, squares, mask=is_row)
    tl.store(out_start + 5 * n_rows + place, first_logit, mask=is_row)


def kernel_sums(
    q: torch.Tensor, k: torch.Tensor, rule: AttentionRule, positions: torch.Tensor, seen: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Compute what `attention_statistics` sums over keys, as tensors (B, G, R, T), for queries (B, G, R, T, d) and keys (B, G, S, d).

    Args:
        rule: the rule, with scale and slopes (G, R), without another bias.

        seen: (B or 1, S) the keys that are not padding, or None.
    """
    n_batch, n_groups, n_shared, n_queries, width = q.shape
    n_heads, n_keys = n_groups * n_shared, k.shape[2]
    device, nothing, slopes = q.device, torch.zeros(1, device=q.device), rule.bias
    assert not callable(slopes)
    first = torch.zeros(n_batch, dtype=torch.int32, device=device)
    if seen is not None:
        seen = seen.expand(n_batch, n_keys).to(torch.int8).contiguous()
        first = seen.argmax(dim=-1).to(torch.int32)
    numbers = torch.empty((6, *q.shape[:-1]), dtype=torch.float32, device=device)
    selected = torch.empty(q.shape[:-1], dtype=torch.int32, device=device)
    with torch.cuda.device(device):
        _sums_kernel[(triton.cdiv(n_queries, _ROWS), n_batch * n_heads)](
            q.contiguous(), k.contiguous(), positions.to(torch.int32), nothing if seen is None else seen,
            nothing if slopes is None else slopes.float().contiguous(), first, numbers, selected,
            rule.scale, rule.softcap or 1.0, n_heads, n_shared, n_queries, n_keys,
            CAUSAL=rule.causal, WINDOW=rule.window or 0, CAPPED=rule.softcap is not None, SLOPED=slopes is not None,
            PADDED=seen is not None, WIDTH=width, D=max(16, triton.next_power_of_2(width)), ROWS=_ROWS, COLUMNS=_COLUMNS,
            num_warps=_WARPS, num_stages=_STAGES,
        )  # fmt: skip
    found = dict(zip(("largest", "margin", "rest", "mean_gap", "squares", "first_logit"), numbers, strict=True))
    found["margin"].masked_fill_(found["margin"] > -LOWEST.value / 2, torch.inf)
    found["first_logit"].masked_fill_(found["first_logit"] < LOWEST.value / 2, -torch.inf)
    return {**found, "selected": selected.long()}
