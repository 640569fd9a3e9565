"""Rows of a selection in exact numbers: differences of keys and of scores to the selected token, as checkers of proofs need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from marginlens.theory.intervals import Exact, Proving, slope_in

if TYPE_CHECKING:
    from marginlens.data.tokens import TokenDataset
    from marginlens.losses.margin import Loss
    from marginlens.typing import FloatArray, IntArray


class ExactRows(NamedTuple):
    """Rows r = (i, t) of the inputs whose output depends on p, in exact numbers: a_r = k_α - k_t and Δ_r = γ_α - γ_t.

    Attributes:
        tokens: input and token of each row.
        a: the differences of keys, one row each.
        delta: Δ_r.
        lead: b_α - b_t, the difference of the offsets of the two logits.
        score: γ_α of the row's input.
        c: c_i^∞, the limit of -ℓ'/n.
    """

    tokens: list[tuple[int, int]]
    a: Exact
    delta: list[Any]
    lead: list[Any]
    score: list[Any]
    c: list[Any]

    @property
    def input(self) -> list[int]:
        """The input of each row."""
        return [i for i, _ in self.tokens]


def exact_rows(proving: Proving, data: TokenDataset, head: FloatArray, loss: Loss, selected: IntArray) -> ExactRows:
    """Compute the rows of a selection of one problem."""
    alpha = selected.tolist()
    n_inputs, n_tokens, lengths = data.n_inputs, data.n_tokens, data.lengths.tolist()
    every = [data.X.reshape(n_inputs * n_tokens, -1), data.K.reshape(n_inputs * n_tokens, -1)]
    scores, keys = Exact.of(every[0]) @ Exact.of(head), Exact.of(every[1])
    gamma = [int(data.y[k // n_tokens]) * score for k, [score] in enumerate(scores.whole.tolist())]
    tokens: list[tuple[int, int]] = []
    for i, length in enumerate(lengths):
        first = i * n_tokens
        has_scores = any(gamma[first + t] != gamma[first] for t in range(length))
        has_keys = bool((data.K[i, :length] != data.K[i, 0]).any())
        # With one score or one key the output does not depend on p, and the input is left out.
        if has_scores and has_keys:
            tokens += [(i, t) for t in range(length) if t != alpha[i]]
    pairs = [(i * n_tokens + alpha[i], i * n_tokens + t) for i, t in tokens]
    delta = [proving.number(gamma[k] - gamma[m], scores.power) for k, m in pairs]
    offsets = Exact.of(data.offsets.reshape(n_inputs * n_tokens, 1))
    lead = [number for [number] in proving.numbers(offsets.differences(pairs))] if pairs else []
    at_selected = [proving.number(gamma[k], scores.power) for k, _ in pairs]
    c = [slope_in(proving, loss, score) / n_inputs for score in at_selected]
    return ExactRows(tokens, keys.differences(pairs), delta, lead, at_selected, c)
