"""What the numbers of a probe say, in sentences; every number in them is computed from the result."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.probe.measures import MaxMarginMeasures
from marginlens.probe.rank_test import rank_test
from marginlens.probe.result import ProbeResult

_CLEARLY = 1.25  # ratio of two medians from which on one is said to be larger
_SIGNIFICANCE = 0.05  # of the rank correlation over heads
_ALIKE = 0.02  # smallest and largest nnz/T of heads that are said to be alike lie this close
_MOST = 0.5  # share of the queries from which on a head is said to select something


def findings(result: ProbeResult) -> tuple[str, ...]:
    """Sentences on sparsity, on how it goes with the weights, on what heads select and on how max-margin they are."""
    said = [_sparsity(result), _by_layer(result), _weights(result), _selections(result), _preferences(result)]
    if result.max_margin is not None:
        said += [_correlation(result.max_margin, result.w_offset), _margins(result.max_margin)]
    return tuple(one for one in said if one)


def head_name(layer: int, head: int) -> str:
    """A head as the page and the terminal call it: L3H5."""
    return f"L{layer}H{head}"


def place_of(values: FloatArray, *, largest: bool) -> tuple[int, int]:
    """Layer and head of the largest or smallest number."""
    flat = int(np.nanargmax(values) if largest else np.nanargmin(values))
    return flat // values.shape[1], flat % values.shape[1]


def _sparsity(result: ProbeResult) -> str:
    count, share = result.heads.nnz, result.heads.relative_nnz
    sparsest, evenest = (place_of(share, largest=one) for one in (False, True))
    counted = (
        f"A query sees {result.mean_tokens:.1f} tokens on average and attends to {np.nanmean(count):.1f} of them (soft count, mean over "
        "heads)."
    )
    if share[evenest] - share[sparsest] < _ALIKE:
        return (
            f"{counted} All heads are about equally sparse: nnz/T from {share[sparsest]:.3f} to {share[evenest]:.3f}."
        )
    return (
        f"{counted} The sparsest head is {head_name(*sparsest)} with nnz/T {share[sparsest]:.2f}, the most even one "
        f"{head_name(*evenest)} with {share[evenest]:.2f}."
    )


def _by_layer(result: ProbeResult) -> str:
    if result.n_layers < 2:
        return ""
    layers = (share[np.isfinite(share)] for share in result.heads.relative_nnz)
    means = ", ".join(f"{share.mean():.2f}" if share.size else "–" for share in layers)
    return f"From the first layer to the last, the mean nnz/T of the heads is {means}."


def _weights(result: ProbeResult) -> str:
    norms, share = result.heads.frobenius.ravel(), result.heads.relative_nnz.ravel()
    known = np.isfinite(norms) & np.isfinite(share)
    if known.sum() < 3 or np.ptp(norms[known]) == 0.0 or np.ptp(share[known]) == 0.0:
        return ""
    rank, p_value = rank_test(norms[known], share[known])
    if p_value > _SIGNIFICANCE:
        return (
            f"Over all {int(known.sum())} heads, the rank correlation of the Frobenius norm of W with nnz/T is {_signed(rank)}, which "
            f"chance alone gives often (p = {p_value:.2g}): nothing can be said about larger weights and sparsity."
        )
    relation = "sparser" if rank < 0.0 else "less sparse"
    return (
        f"Over all heads, the rank correlation of the Frobenius norm of W with nnz/T is {_signed(rank)}: heads with larger key-query "
        f"weights are {'on the whole' if abs(rank) > 0.3 else 'only slightly'} {relation}."
    )


def _selections(result: ProbeResult) -> str:
    heads = result.heads
    kinds = {
        "their own token": heads.self_share,
        "the first token": heads.first_share,
        "the last token": heads.last_share,
    }
    counted = [f"{int(np.sum(np.nan_to_num(share) > _MOST))} select {name}" for name, share in kinds.items()]
    decisive = np.nanmean(heads.decisive_share)
    return (
        f"Of {result.n_layers * result.n_heads} heads, {', '.join(counted[:-1])} and {counted[-1]} in more than half of their queries. "
        f"On average {decisive:.0%} of a head's selections are decisive: the selected token holds more than half of the attention."
        f"{_ties(heads.tied_share)}"
    )


def _ties(share: FloatArray) -> str:
    """Where several tokens share the largest logit; nothing where none do."""
    tied = np.nan_to_num(share)
    if not tied.any():
        return ""
    most = place_of(share, largest=True)
    return (
        f" In {int(np.sum(tied > 0))} of {tied.size} heads some queries select nothing, being tied: several tokens share their largest "
        f"logit, up to rounding, most often in {head_name(*most)}, in {_percent(share[most])} of its queries."
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def _preferences(result: ProbeResult) -> str:
    contested, strict = result.heads.contested_share, result.heads.strict_share
    if not np.isfinite(contested).any() or not np.isfinite(strict).any():
        return ""
    return (
        f"A head decides {np.nanmean(contested):.0%} of the pairs of tokens it chooses between now one way, now the other (mean over "
        f"heads); of its clear preferences, {_share(float(np.nanmean(strict)))} are in no cycle."
    )


def _share(value: float) -> str:
    """In percent, with a digit more where whole percent would say all or none of what is not."""
    return f"{value:.1%}" if value not in (0.0, 1.0) and not 0.005 <= value < 0.995 else f"{value:.0%}"


def _correlation(found: MaxMarginMeasures, offset: int | None) -> str:
    own = found.correlation
    if not np.isfinite(own).any():
        return "No head can be compared with a max-margin solution: the notes below say why."
    best = place_of(own, largest=True)
    at, whose = (
        ("", "its own selections") if offset is None else (f" at offset {offset}", "the selections that this W makes")
    )
    return (
        f"The correlation of a head's W{at} with the max-margin solution for {whose} has median {_median(own)} over heads "
        f"({_ends(own)}). The baselines: {_median(found.correlation_random_selections)} at random selections, "
        f"{_median(found.correlation_random_matrix)} for a random W at the same selections, "
        f"{_median(found.correlation_random_head)} for a random W at the selections it makes itself. "
        f"It exceeds that of random selections in {above(own, found.correlation_random_selections)} heads and that of a random W at its "
        f"own selections in {above(own, found.correlation_random_head)}: by this measure the typical head is "
        f"{_compared(own, found.correlation_random_head)} max-margin {_than(own, found.correlation_random_head)} a random one. "
        f"The largest correlation is that of {head_name(*best)}, {own[best]:.3f}."
    )


def _margins(found: MaxMarginMeasures) -> str:
    own = found.margin_ratio
    if not np.isfinite(own).any():
        return ""
    return (
        f"The smallest margin of a head, at unit norm, is {_median(own)} of the best possible one (median over heads, {_ends(own)}), "
        f"against {_median(found.margin_ratio_random_head)} for a random W at the selections it makes itself; the margin that 95% of the "
        f"constraints exceed is {_median(found.low_ratio)} of the best, against {_median(found.low_ratio_random_head)}."
    )


def above(own: FloatArray, baseline: FloatArray) -> str:
    """How many numbers exceed their baseline, of those that have one: 3 of 5."""
    known = np.isfinite(own) & np.isfinite(baseline)
    return f"{int(np.sum(known & (own > baseline)))} of {int(known.sum())}"


def _compared(own: FloatArray, chance: FloatArray) -> str:
    ratio = _ratio(own, chance)
    return "more" if ratio > _CLEARLY else "less" if ratio < 1.0 / _CLEARLY else "about as"


def _than(own: FloatArray, chance: FloatArray) -> str:
    return "as" if _compared(own, chance) == "about as" else "than"


def _ratio(own: FloatArray, chance: FloatArray) -> float:
    """Of the medians; 1 where there is nothing to compare with."""
    known = np.isfinite(own).any() and np.isfinite(chance).any() and np.nanmedian(chance) > 0.0
    return float(np.nanmedian(own) / np.nanmedian(chance)) if known else 1.0


def _median(values: FloatArray) -> str:
    return _signed(float(np.nanmedian(values))) if np.isfinite(values).any() else "unknown"


def _ends(values: FloatArray) -> str:
    return f"from {_signed(float(np.nanmin(values)))} to {_signed(float(np.nanmax(values)))}"


def _signed(number: float) -> str:
    """Three decimals, or two digits of a small number."""
    return (f"{number:.3f}" if abs(number) >= 0.1 or number == 0.0 else f"{number:.2g}").replace("-", "−")
