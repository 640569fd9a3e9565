"""The automaton that the trained layer becomes: retrieve the tokens of highest priority, then mix them in fixed proportions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.data.generators import as_generator
from marginlens.data.sequences import SequenceDataset, as_sequences, check_sequence
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import InputError, reject, whole_number
from marginlens.graphs import PriorityGraph, priority_graphs
from marginlens.nexttoken.correction import CorrectionStatus, CyclicCorrection, cyclic_correction
from marginlens.nexttoken.explanation import TIE, Explanation, Rival
from marginlens.papers import implements
from marginlens.svm import MarginSolution, Status, graph_svm


@implements("C", "Abstract")
@dataclass(frozen=True, repr=False, eq=False)
class NextTokenAutomaton:
    r"""The limit of the trained layer, in closed form from the data: no training.

    .. math:: \lim_{R \to \infty} \mathbb S\big(X (R\, W^{mm} + W^{cyc}) \bar x\big)

    Of the tokens in a sequence, those with the largest :math:`e_x^\top W^{mm} \bar x` keep all of the probability (hard retrieval); among
    them it is spread in proportion to multiplicity times :math:`\exp(e_x^\top W^{cyc} \bar x)` (soft composition).

    Attributes:
        E: (n_vocabulary, d_model). graphs: last token → `PriorityGraph`.
        priority: the Graph-SVM solution, `priority.x` is W^mm. mix: the cyclic correction, `mix.x` is W^cyc.
    """

    E: FloatArray
    graphs: Mapping[int, PriorityGraph]
    priority: MarginSolution
    mix: CyclicCorrection

    @classmethod
    def fit(cls, ds: SequenceDataset) -> NextTokenAutomaton:
        """The automaton of a dataset, from its priority graphs, its Graph-SVM and its cyclic correction (log-loss, C Eᵀ = I)."""
        graphs = priority_graphs(as_sequences(ds))
        priority = graph_svm(ds.E, graphs)
        if priority.status not in (Status.OPTIMAL, Status.TRIVIAL):
            raise InputError(
                f"The data have no automaton: their Graph-SVM is {priority.status.name.lower()}. {priority.status.value} "
                f"More embedding dimensions than d_model = {ds.d_model} make the {ds.n_vocabulary} tokens separable."
            )
        mix = cyclic_correction(ds, graphs=graphs)
        if mix.status not in (CorrectionStatus.FINITE, CorrectionStatus.TRIVIAL):
            raise InputError(
                f"The data have no automaton: their cyclic correction is {mix.status.name.lower()}. {mix.status.value}"
            )
        return cls(ds.E, graphs, priority, mix)

    def __repr__(self) -> str:
        margin = float(self.priority.margin)
        return f"NextTokenAutomaton({self.n_vocabulary} tokens, {len(self.graphs)} last tokens, margin={margin:.4g})"

    @property
    def n_vocabulary(self) -> int:
        """How many tokens there are."""
        return len(self.E)

    # ---- the rule

    def heights(self, last: int) -> FloatArray:
        """(n_vocabulary,) the priority e_xᵀ W^mm e_last of every token; exactly equal within a component of the graph of `last`."""
        token = whole_number(last, "last", at_least=0)
        if token >= self.n_vocabulary:
            raise reject("last", f"an id from 0 to {self.n_vocabulary - 1}", token)
        return self._columns(token)[0].copy()

    def predict_proba(self, sequence: Any) -> FloatArray:
        """(n_vocabulary,) the probability of each token to follow the sequence; zero for tokens that the sequence lacks."""
        ids = check_sequence(sequence, self.n_vocabulary)
        tokens, counts = np.unique(ids, return_counts=True)
        probability = np.zeros(self.n_vocabulary)
        probability[tokens] = self._shares(int(ids[-1]), tokens, counts)
        return probability

    def predict(self, sequence: Any) -> int:
        """The most probable next token; the smallest id where several tie."""
        return int(np.argmax(self.predict_proba(sequence)))

    def sample(self, sequence: Any, n_tokens: int, rng: Any, *, window: int | None = None) -> IntArray:
        """Continue a sequence: (n_tokens,) ids, each drawn given all before it, or given the last `window` of them."""
        ids = check_sequence(sequence, self.n_vocabulary).tolist()
        n_tokens, generator = whole_number(n_tokens, "n_tokens", at_least=0), as_generator(rng)
        reach = None if window is None else whole_number(window, "window", at_least=1)
        for _ in range(n_tokens):
            seen = ids if reach is None else ids[-reach:]
            ids.append(int(generator.choice(self.n_vocabulary, p=self.predict_proba(seen))))
        return np.array(ids[len(ids) - n_tokens :], dtype=np.int64)

    def _shares(self, last: int, tokens: IntArray, counts: IntArray) -> FloatArray:
        """(n_tokens,) the probabilities of different tokens that occur `counts` times."""
        height, mix = (column[tokens] for column in self._columns(last))
        log_weight = np.where(height >= height.max() - TIE, mix + np.log(counts), -np.inf)
        weight = np.exp(log_weight - log_weight.max())
        return weight / weight.sum()

    def _columns(self, last: int) -> tuple[FloatArray, FloatArray]:
        """Heights and mixing logits of every token for a last token, each (n_vocabulary,)."""
        if last not in self._cache:
            query = self.E[last]
            height = self.E @ (self.priority.x @ query)
            graph = self.graphs.get(last)
            for members in () if graph is None else graph.components:
                height[members] = height[members].mean()
            self._cache[last] = height, self.E @ (self.mix.x @ query)
        return self._cache[last]

    @cached_property
    def _cache(self) -> dict[int, tuple[FloatArray, FloatArray]]:
        return {}

    # ---- the reasons

    def explain(self, sequence: Any, names: Any = None) -> Explanation:
        """Which component wins in a sequence and over what, in which proportions its tokens mix, and the chain of priorities below.

        Args:
            names: (n_vocabulary,) what to call each token; ids by default.
        """
        ids = check_sequence(sequence, self.n_vocabulary)
        last, graph = int(ids[-1]), self.graphs.get(int(ids[-1]))
        tokens, counts = np.unique(ids, return_counts=True)
        height, share = self.heights(last)[tokens], self._shares(last, tokens, counts)
        part = np.full(len(tokens), -1) if graph is None else graph.components_of(tokens)
        order = np.lexsort((tokens, -share, -height))
        rivals = tuple(
            Rival(int(tokens[r]), int(counts[r]), float(height[r]), int(part[r]), float(share[r])) for r in order
        )
        strict = {} if graph is None else self._reasons(last, set(tokens.tolist()))
        return Explanation(last, rivals, strict, graph is not None, _names(names, self.n_vocabulary))

    def _reasons(self, last: int, present: set[int]) -> dict[tuple[int, int], float]:
        """The strict pairs among the tokens present, with the multiplier of each in the Graph-SVM."""
        pairs = self.priority.pairs
        if pairs is None:
            return {}
        rows = np.flatnonzero(pairs[:, 0] == last)
        chosen = [(int(pairs[r, 1]), int(pairs[r, 2]), float(self.priority.multipliers[r])) for r in rows]
        return {(i, j): weight for i, j, weight in chosen if i in present and j in present}

    # ---- the check

    def total_variation(self, ds: SequenceDataset, W: Any) -> FloatArray:
        r"""(n_samples,) how far a layer with weights W is from the automaton: :math:`\tfrac12 \sum_x |P_x - Q_x|` on each sequence."""
        as_sequences(ds)
        trained = ds.attention(W)
        distance = np.empty(len(ds))
        for i in range(len(ds)):
            ids, _ = ds[i]
            model = np.bincount(ids, weights=trained[ds.offsets[i] : ds.offsets[i + 1]], minlength=self.n_vocabulary)
            distance[i] = 0.5 * np.abs(model - self.predict_proba(ids)).sum()
        return distance


def _names(names: Any, n_vocabulary: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(n_vocabulary)))
    expected = f"one name for each of {n_vocabulary} tokens"
    try:
        listed = tuple(map(str, names))
    except TypeError as problem:
        raise reject("names", expected, type(names).__name__) from problem
    if len(listed) != n_vocabulary:
        raise reject("names", expected, f"{len(listed)} names")
    return listed
