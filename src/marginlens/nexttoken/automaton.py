"""The automaton that a trained layer becomes: it retrieves the tokens of highest priority and mixes them in fixed proportions."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset, as_sequences, check_sequence
from marginlens.errors import InputError, whole_number
from marginlens.graphs import PriorityGraph, priority_graphs
from marginlens.graphs.priority import as_graphs, component_order
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction
from marginlens.nexttoken.path_expansion import PathExpansion, expand_path, strict_entries
from marginlens.nexttoken.scores import PredictionScore, score_shares
from marginlens.papers import implements
from marginlens.result import Displayed, Tabular
from marginlens.risk.sequence_batch import ReducedProblem, reduce_sequences
from marginlens.status import Case
from marginlens.svm import GraphSolution, MarginSolution, Status, graph_conflict, graph_svm
from marginlens.svm.solvers.independent_parts import is_orthonormal
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray, Seed
from marginlens.words import Fact, text

# Embeddings with at most this share of nonzero entries are multiplied as a sparse matrix.
SPARSE_SHARE = 0.1
# Heights closer than this are equal; the gap of a strict pair is 1.
TIE = 1e-7
MAX_LISTED_PAIRS = 6


@implements("C", "Abstract")
@dataclass(frozen=True, repr=False, eq=False)
class NextTokenAutomaton(Displayed, Tabular):
    r"""The limit of the trained layer, in closed form from the data: no training.

    .. math:: \lim_{R \to \infty} \mathbb S(X \bar W_R\, \bar x), \qquad
        \bar W_R = C_R W^{mm} + \sum_l s_l(R)\, W_l + W^{cyc} + O + o(1)

    The tokens of a sequence with the largest :math:`e_x^\top W^{mm} \bar x` keep all of the probability (hard retrieval). They
    share it in proportion to multiplicity times :math:`\exp(e_x^\top (W^{cyc} + O) \bar x)` (soft composition). In a training
    sequence they are one component, on which O is constant, so W^cyc alone sets the shares. In a new sequence, tokens of
    different components may have equal heights. Then the constant term O of the path matters too, after the slowly growing
    :math:`W_l` if there are any (`expansion`). These terms are computed only for such a sequence.

    This is the limit of the regularisation path. Gradient descent has the same limit for all tokens that active pairs of the
    Graph-SVM connect. Between other tokens, its start and its first steps leave another constant.

    Attributes:
        E: the embeddings, of shape (n_vocabulary, d_model).

        graphs: last token → `PriorityGraph`.

        priority: the Graph-SVM solution; `priority.x` is W^mm.

        mix: the cyclic correction; `mix.x` is W^cyc.

        data: the sequences that the automaton was made from.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> E = np.eye(3)
        >>> data = ml.SequenceDataset([[0, 1, 2], [1, 0, 2]], [1, 1], E)
        >>> automaton = ml.NextTokenAutomaton.fit(data)
        >>> automaton.predict_proba([0, 1, 2])
        array([0., 1., 0.])

    `to_frame()` has one row per last token and token of its graph: last, token, component (0 has the highest priority), height.
    """

    E: FloatArray
    graphs: Mapping[int, PriorityGraph]
    priority: MarginSolution
    mix: CyclicCorrection
    data: SequenceDataset
    quantities = "{n_vocabulary} tokens, {graphs:#} last tokens, margin={priority.margin:.4g}"

    @classmethod
    def fit(
        cls,
        data: SequenceDataset,
        *,
        graphs: Mapping[int, PriorityGraph] | None = None,
        priority: GraphSolution | None = None,
    ) -> NextTokenAutomaton:
        """Make the automaton of a dataset from its priority graphs, its Graph-SVM and its cyclic correction (log-loss, C Eᵀ = I).

        Samples that lack their label are left out, because under C Eᵀ = I they have no gradient.

        Args:
            data: the training sequences with their next tokens.

            graphs: `priority_graphs(data)`, if they have been computed already.

            priority: `graph_svm(data.E, graphs)`, if it has been computed already.

        Returns:
            The automaton.

        Raises:
            InputError: if the Graph-SVM has no solution or the cyclic correction is not finite.
        """
        data = as_sequences(data).realizable()
        graphs = priority_graphs(data) if graphs is None else as_graphs(graphs, data.n_vocabulary)
        priority = graph_svm(data.E, graphs) if priority is None else _checked(priority, data)
        if priority.status not in (Status.OPTIMAL, Status.TRIVIAL):
            raise _refused(priority)
        mix = cyclic_correction(data, graphs=graphs)
        if mix.status not in (Status.FINITE, Status.TRIVIAL):
            got = f"data whose cyclic correction is {mix.status.name.lower()}"
            raise InputError("data", "data with an automaton", got, mix.status.sentence)
        return cls(data.E, graphs, priority, mix, data)

    @property
    def n_vocabulary(self) -> int:
        """The number of tokens."""
        return len(self.E)

    # ---- the rule

    def _columns(self) -> dict[str, Any]:
        graphs = self.graphs.items()
        return {
            "last": np.concatenate([np.full(len(graph.nodes), last) for last, graph in graphs]),
            "token": np.concatenate([graph.nodes for _, graph in graphs]),
            "component": np.concatenate([graph.component_of for _, graph in graphs]),
            "height": np.concatenate([self.heights(last)[graph.nodes] for last, graph in graphs]),
        }

    def heights(self, last: int) -> FloatArray:
        """Compute the priority e_xᵀ W^mm e_last of every token.

        Args:
            last: the last token of a sequence.

        Returns:
            (n_vocabulary,) heights, exactly equal within a component of the graph of `last`.
        """
        return self._heights_and_mix(self._last(last))[0].copy()

    def expansion(self, last: int) -> PathExpansion:
        """Expand the path beyond W^mm for sequences that end in `last`: these terms decide between equal heights.

        Args:
            last: the last token of a sequence.

        Returns:
            The terms. With orthonormal embeddings every last token has its own, and they are zero if it ends no training sequence.
        """
        token = self._last(last)
        if not self._orthonormal:
            return self._expansion_of_all
        graphs = {k: graph for k, graph in self.graphs.items() if k == token}
        entries = strict_entries(self.data, graphs, self.mix.x)
        return expand_path(self.E, graphs, self.priority, entries, orthonormal=True)

    def predict_proba(self, sequence: ArrayLike, *, W: ArrayLike | None = None, slow: str | None = None) -> FloatArray:
        """Compute the probability of each token to follow a sequence.

        Args:
            sequence: token ids; the last one attends.

            W: (d_model, d_model) the weights of a layer, such as `ml.path(data, [R]).points[0]` at norm R, to get its probabilities
                instead of their limit.

            slow: what to return if weights that grow only like the logarithm of the norm decide between tokens of equal height.
                A layer shows this limit only at enormous norms, and may prefer other tokens before. "limit" returns the limit anyway,
                "unknown" returns nan for these tokens. By default it is the limit, with a `SlowLimitWarning`.

        Returns:
            (n_vocabulary,) probabilities: zero for tokens that the sequence lacks, and nan for tokens of equal height whose shares are
            not known (`explain` says why).

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> data = ml.SequenceDataset([[0, 1, 1], [0, 0, 1]], [0, 1], np.eye(2))
            >>> ml.NextTokenAutomaton.fit(data).predict_proba([0, 1]).round(3)
            array([0.5, 0.5])
        """
        ids, slow_is_known = check_sequence(sequence, self.n_vocabulary), _slow_is_known(slow)
        tokens, counts = np.unique(ids, return_counts=True)
        probability = np.zeros(self.n_vocabulary)
        if W is None:
            shares, decided = self._shares(int(ids[-1]), tokens, counts, slow_is_known=slow_is_known)
            if decided is TieBreak.SLOW and slow is None:
                warnings.warn(text("automaton.slow_limit"), SlowLimitWarning, stacklevel=2)
            probability[tokens] = shares
        else:
            probability[tokens] = scipy.special.softmax(
                self._logits(self.data.weights(W), int(ids[-1]))[tokens] + np.log(counts)
            )
        return probability

    def predict(self, sequence: ArrayLike) -> int:
        """Predict the most probable next token in the limit, even if slowly growing weights decide.

        Args:
            sequence: token ids; the last one attends.

        Returns:
            The token, the one with the smallest id if several are equally probable.

        Raises:
            InputError: if the shares of the tokens that tie are not known.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> data = ml.SequenceDataset([[0, 1, 2], [1, 0, 2]], [1, 1], np.eye(3))
            >>> ml.NextTokenAutomaton.fit(data).predict([0, 1, 1, 2])
            1
        """
        return int(np.argmax(self._certain_probabilities(sequence)))

    def sample(self, sequence: ArrayLike, n_tokens: int, rng: Seed, *, window: int | None = None) -> IntArray:
        """Continue a sequence with random tokens.

        Args:
            sequence: token ids to begin with.

            n_tokens: number of tokens to draw.

            rng: a `numpy.random.Generator`, or a whole number to seed one.

            window: number of last tokens that each draw sees; all by default.

        Returns:
            (n_tokens,) ids, each drawn from the limit given the tokens before it.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> data = ml.SequenceDataset([[0, 1, 2], [0, 2, 1]], [1, 2], np.eye(3))
            >>> ml.NextTokenAutomaton.fit(data).sample([0, 1, 2], 4, rng=0)
            array([1, 2, 1, 2])
        """
        ids = check_sequence(sequence, self.n_vocabulary).tolist()
        n_tokens, generator = whole_number(n_tokens, "n_tokens", at_least=0), as_generator(rng)
        reach = None if window is None else whole_number(window, "window", at_least=1)
        for _ in range(n_tokens):
            seen = ids if reach is None else ids[-reach:]
            ids.append(int(generator.choice(self.n_vocabulary, p=self._certain_probabilities(seen))))
        return np.array(ids[len(ids) - n_tokens :], dtype=np.int64)

    def _certain_probabilities(self, sequence: ArrayLike) -> FloatArray:
        """Return `predict_proba`, or raise if a share is not known."""
        probability = self.predict_proba(sequence, slow="limit")
        unknown = np.flatnonzero(np.isnan(probability))
        if len(unknown):
            reason = self.expansion(int(np.asarray(sequence)[-1])).reason
            remedy = text("automaton.unknown_shares", tokens=unknown.tolist(), reason=reason)
            raise InputError(
                "sequence", "one after which all shares are known", f"{np.asarray(sequence).tolist()}", remedy
            )
        return probability

    def _shares(
        self, last: int, tokens: IntArray, counts: IntArray, *, slow_is_known: bool = True
    ) -> tuple[FloatArray, TieBreak]:
        """Return the probabilities of different tokens that occur `counts` times, (n_tokens,), and what decided between equal heights."""
        height, mix = (column[tokens] for column in self._heights_and_mix(last))
        leads, decided = height >= height.max() - TIE, TieBreak.NONE
        if np.sum(leads) > 1 and not self._are_one_component(last, tokens[leads]):
            slow, offset = self._later_terms(last)
            if np.isnan(offset).any():
                return np.where(leads, np.nan, 0.0), TieBreak.UNKNOWN
            decided, tied = TieBreak.OFFSET, leads
            for slower in slow:
                leads = leads & (slower[tokens] >= slower[tokens][leads].max() - TIE)
            if not np.array_equal(leads, tied):
                decided = TieBreak.SLOW
                if not slow_is_known:
                    return np.where(tied, np.nan, 0.0), decided
            mix = mix + offset[tokens]
        log_weight = np.where(leads, mix + np.log(counts), -np.inf)
        weight = np.exp(log_weight - log_weight.max())
        return weight / weight.sum(), decided

    def _are_one_component(self, last: int, tokens: IntArray) -> bool:
        graph = self.graphs.get(last)
        parts = np.full(len(tokens), -1) if graph is None else graph.components_of(tokens)
        return bool(parts[0] >= 0 and (parts == parts[0]).all())

    def _heights_and_mix(self, last: int) -> tuple[FloatArray, FloatArray]:
        """Return heights and mixing logits of every token for a last token, each (n_vocabulary,)."""
        if last not in self._cache:
            height = self._logits(self.priority.x, last)
            graph = self.graphs.get(last)
            for members in () if graph is None else graph.components:
                height[members] = height[members].mean()
            self._cache[last] = height, self._logits(self.mix.x, last)
        return self._cache[last]

    def _last(self, last: int) -> int:
        token = whole_number(last, "last", at_least=0)
        if token >= self.n_vocabulary:
            raise InputError("last", f"an id from 0 to {self.n_vocabulary - 1}", token)
        return token

    def _later_terms(self, last: int) -> tuple[list[FloatArray], FloatArray]:
        """Return logits of every token for a last token, each (n_vocabulary,): along the slow directions of the path, and of its offset."""
        if last not in self._later:
            expansion = self.expansion(last)
            self._later[last] = (
                [self._logits(slower, last) for slower in expansion.slow],
                self._logits(expansion.offset, last),
            )
        return self._later[last]

    def _logits(self, W: FloatArray, last: int) -> FloatArray:
        """Return e_xᵀ W e_last of every token x, (n_vocabulary,); coordinates in which e_last is zero are not read."""
        used = np.flatnonzero(self.E[last])
        return np.asarray(self._table @ (W[:, used] @ self.E[last, used]))

    @cached_property
    def _table(self) -> Any:
        """The embeddings E, as a sparse matrix if they are mostly zeros, such as one-hot embeddings."""
        is_thin = np.count_nonzero(self.E) <= SPARSE_SHARE * self.E.size
        return scipy.sparse.csr_array(self.E) if is_thin else self.E

    @cached_property
    def _orthonormal(self) -> bool:
        return is_orthonormal(self.E)

    @cached_property
    def _cache(self) -> dict[int, tuple[FloatArray, FloatArray]]:
        return {}

    @cached_property
    def _later(self) -> dict[int, tuple[list[FloatArray], FloatArray]]:
        return {}

    @cached_property
    def _expansion_of_all(self) -> PathExpansion:
        entries = strict_entries(self.data, self.graphs, self.mix.x)
        return expand_path(self.E, self.graphs, self.priority, entries, orthonormal=False)

    # ---- the reasons

    def explain(self, sequence: ArrayLike, names: Sequence[str] | None = None) -> Explanation:
        """Explain a prediction: the component that wins in a sequence, the shares of its tokens, and the priorities below it.

        Args:
            sequence: token ids; the last one attends.

            names: (n_vocabulary,) the name of each token; its id by default.

        Returns:
            An `Explanation`, which prints as sentences.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> data = ml.SequenceDataset([[0, 1, 2]], [1], np.eye(3))
            >>> print(ml.NextTokenAutomaton.fit(data).explain([0, 1, 2], names=["the", "cat", "a"]))
            After a comes cat.
            Priority: cat > the = a.
            Training sequences rank cat over the and cat over a.
        """
        ids = check_sequence(sequence, self.n_vocabulary)
        last, graph = int(ids[-1]), self.graphs.get(int(ids[-1]))
        tokens, counts = np.unique(ids, return_counts=True)
        height, (share, decided) = self.heights(last)[tokens], self._shares(last, tokens, counts)
        component = np.full(len(tokens), -1) if graph is None else graph.components_of(tokens)
        order = np.lexsort((tokens, -share, _levels(height)))
        rivals = tuple(
            Rival(int(tokens[r]), int(counts[r]), float(height[r]), int(component[r]), float(share[r])) for r in order
        )
        strict = {} if graph is None else self._reasons(last, set(tokens.tolist()))
        reason = self.expansion(last).reason if decided is TieBreak.UNKNOWN else None
        winning = component[share != 0.0]
        implied: frozenset[int] = frozenset()
        if graph is not None and (winning == winning[0]).all() and winning[0] >= 0:
            below = component_order(graph).reach[winning[0]]
            implied = frozenset(tokens[(component >= 0) & below[component]].tolist())
        return Explanation(
            last, rivals, strict, graph is not None, _names(names, self.n_vocabulary), decided, reason, implied
        )

    def _reasons(self, last: int, present: set[int]) -> dict[tuple[int, int], float]:
        """Collect the strict pairs among the tokens present, with the multiplier of each in the Graph-SVM."""
        pairs = self.priority.pairs
        if pairs is None:
            return {}
        rows = np.flatnonzero(pairs[:, 0] == last)
        chosen = [(int(pairs[r, 1]), int(pairs[r, 2]), float(self.priority.multipliers[r])) for r in rows]
        return {(i, j): weight for i, j, weight in chosen if i in present and j in present}

    # ---- the check

    def score(self, data: SequenceDataset, *, W: ArrayLike | None = None, slow: str | None = None) -> PredictionScore:
        """Score the predictions of labels, by the automaton or by a layer with weights W: accuracy and log-loss.

        Samples with the same tokens are merged, so this is much faster than `predict_proba` of each. Compare with
        `WindowNgram.fit(training, 2).score(data)`.

        Args:
            data: sequences with their next tokens, such as a part that was held out.

            W: (d_model, d_model) the weights of a layer, to score it instead of the limit.

            slow: how to score sequences in which slowly growing weights decide (see `predict_proba`): by the limit, unless it is
                "unknown". Their share is `slow` of the score in either case.

        Returns:
            A `PredictionScore`.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> data = ml.SequenceDataset([[0, 1, 2], [1, 0, 2]], [1, 1], np.eye(3))
            >>> ml.NextTokenAutomaton.fit(data).score(data).accuracy
            1.0
        """
        if as_sequences(data).n_vocabulary != self.n_vocabulary:
            raise InputError(
                "data", f"over the {self.n_vocabulary} tokens of the automaton", f"{data.n_vocabulary} tokens"
            )
        problem, slow_is_known = reduce_sequences(data), _slow_is_known(slow)
        if W is not None:
            return score_shares(problem, problem.shares(data.weights(W)))
        shares, is_slow = self._entry_shares(problem, slow_is_known=slow_is_known)
        return score_shares(problem, shares, is_slow)

    def _entry_shares(self, problem: ReducedProblem, *, slow_is_known: bool = True) -> tuple[FloatArray, BoolArray]:
        """Compute the probability (n_entries,) of each of the different tokens of each merged sample, nan if it is not known.

        Also returns (n_merged,) whether slowly growing weights decide in a sample.
        """
        sample, shares = problem.sample, np.empty(len(problem.tokens))
        is_slow = np.zeros(len(problem.labels), dtype=np.bool_)
        by_query = np.argsort(problem.column[sample], kind="stable")
        edges = np.searchsorted(problem.column[sample][by_query], np.arange(len(problem.queries) + 1))
        for q, last in enumerate(problem.queries.tolist()):
            # Entries in the order of their samples.
            entries = by_query[edges[q] : edges[q + 1]]
            tokens, log_counts = problem.tokens[entries], problem.log_counts[entries]
            _, first, owner = np.unique(sample[entries], return_index=True, return_inverse=True)
            height, mix = (column[tokens] for column in self._heights_and_mix(last))
            leads = height >= np.maximum.reduceat(height, first)[owner] - TIE
            logits = np.where(leads, mix + log_counts, -np.inf)
            weight = np.exp(logits - np.maximum.reduceat(logits, first)[owner])
            shares[entries] = weight / np.add.reduceat(weight, first)[owner]
            graph = self.graphs.get(last)
            component = np.full(len(tokens), -1) if graph is None else graph.components_of(tokens)
            highest = np.maximum.reduceat(np.where(leads, component, -1), first)
            lowest = np.minimum.reduceat(np.where(leads, component, np.iinfo(np.int64).max), first)
            several = np.add.reduceat(leads, first, dtype=np.int64) > 1
            ends = np.append(first, len(entries))
            # Samples whose highest tokens are not one component need the later terms of the path.
            for i in np.flatnonzero(several & ((highest != lowest) | (lowest < 0))).tolist():
                own = slice(ends[i], ends[i + 1])
                counts = np.rint(np.exp(log_counts[own])).astype(np.int64)
                shares[entries[own]], decided = self._shares(last, tokens[own], counts, slow_is_known=slow_is_known)
                is_slow[sample[entries[ends[i]]]] = decided is TieBreak.SLOW
        return shares, is_slow

    def total_variation(self, data: SequenceDataset, W: ArrayLike) -> FloatArray:
        r"""Measure the distance of a layer from the automaton, :math:`\tfrac12 \sum_x |P_x - Q_x|` on each sequence.

        Args:
            data: the sequences.

            W: (d_model, d_model) the weights of the layer.

        Returns:
            (n_samples,) distances from 0 to 1.
        """
        weights = as_sequences(data).weights(W)
        problem = reduce_sequences(data)
        distance = np.abs(problem.shares(weights) - self._entry_shares(problem)[0])
        summed: FloatArray = 0.5 * np.add.reduceat(distance, problem.offsets[:-1])
        return summed[problem.merged]


def _checked(priority: object, data: SequenceDataset) -> GraphSolution:
    """Return `priority` if it is a solution for embeddings of this width."""
    if not isinstance(priority, GraphSolution) or priority.x.shape != (data.d_model, data.d_model):
        raise InputError("priority", f"graph_svm(data.E, graphs) with d_model = {data.d_model}", repr(priority))
    return priority


def _refused(priority: GraphSolution) -> InputError:
    """Return the error for data without W^mm, with a remedy."""
    got = f"data whose Graph-SVM is {priority.status.name.lower()}"
    remedy = priority.status.sentence
    if priority.status is Status.INFEASIBLE:
        conflict, n_vocabulary = graph_conflict(priority), len(priority.rows.X)
        numbers = {"conflict": conflict.describe([f"token {k}" for k in range(n_vocabulary)]), "d_model": n_vocabulary}
        case = "zero_embedding" if conflict.vanishing else "dependent_embeddings"
        remedy = text("automaton.no_priority", case=case, sentence=remedy, **numbers)
    return InputError("data", "data with an automaton", got, remedy)


def _slow_is_known(slow: object) -> bool:
    """Check whether the limit counts as known if slowly growing weights decide."""
    if slow not in (None, "limit", "unknown"):
        raise InputError("slow", "'limit' or 'unknown'", repr(slow))
    return bool(slow != "unknown")


def _levels(height: FloatArray) -> IntArray:
    """Return the level of each height, (n_tokens,): 0 for the highest tokens, one more at every drop."""
    order = np.argsort(-height, kind="stable")
    level = np.empty(len(height), dtype=np.int64)
    level[order] = np.concatenate([[0], np.cumsum(np.diff(height[order]) < -TIE)])
    return level


def _names(names: Sequence[str] | None, n_vocabulary: int) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(n_vocabulary)))
    listed = tuple(map(str, names)) if isinstance(names, Iterable) else ()
    if len(listed) != n_vocabulary:
        got = f"{len(listed)} names" if isinstance(names, Iterable) else type(names).__name__
        raise InputError("names", f"one name for each of {n_vocabulary} tokens", got)
    return listed


class SlowLimitWarning(UserWarning):
    """A limit that no layer of ordinary size shows, because slowly growing weights decide between tokens of equal height."""


class TieBreak(Case):
    """Reason why tokens of equal height that the data do not compare have their shares; the value is the code of its clause."""

    NONE = ""
    OFFSET = "automaton.tie.offset"
    SLOW = "automaton.tie.slow"
    UNKNOWN = "automaton.tie.unknown"


@dataclass(frozen=True)
class Rival:
    """One token of a sequence: its count, its height e_xᵀ W^mm e_last, its component (-1: none), its probability (nan: unknown)."""

    token: int
    count: int
    height: float
    component: int
    probability: float


@dataclass(frozen=True, repr=False)
class Explanation(Displayed, Tabular):
    """The automaton's reasons on one sequence; `str` of it is a few sentences, which are the `facts`.

    Attributes:
        last: the last token, whose graph decides.

        rivals: the different tokens of the sequence, highest priority first.

        strict: pairs (i, j) of tokens present that the data rank i ⇒ j, with the Graph-SVM multiplier of each (0 if the pair has slack).

        is_known: whether any training sequence ends in `last`; if not, heights come from the embeddings alone.

        names: the names of all tokens.

        tie: what decided if the highest tokens are not one component.

        reason: why their shares are unknown, or None.

        implied: the tokens present that the data rank below the winners, directly or through ties and chains of rankings.

    `to_frame()` has one row per token of the sequence, highest priority first: token, name, count, height, component, probability.
    """

    last: int
    rivals: tuple[Rival, ...]
    strict: Mapping[tuple[int, int], float]
    is_known: bool
    names: tuple[str, ...]
    tie: TieBreak = TieBreak.NONE
    reason: Fact | None = None
    implied: frozenset[int] = frozenset()

    @property
    def winners(self) -> tuple[Rival, ...]:
        """The tokens that keep probability, or that may keep some if shares are unknown."""
        return tuple(rival for rival in self.rivals if rival.probability != 0.0)

    @property
    def is_ranked(self) -> bool:
        """True if the winners are one component: then the data make them equal, not a coincidence of heights."""
        parts = {rival.component for rival in self.winners}
        return len(self.winners) == 1 or (len(parts) == 1 and -1 not in parts)

    @property
    def chain(self) -> tuple[tuple[int, ...], ...]:
        """The tokens present, in groups of equal height, highest first."""
        groups: list[list[Rival]] = []
        for rival in self.rivals:
            if groups and rival.height >= groups[-1][0].height - TIE:
                groups[-1].append(rival)
            else:
                groups.append([rival])
        return tuple(tuple(rival.token for rival in group) for group in groups)

    @property
    def reasons(self) -> tuple[tuple[int, int, float], ...]:
        """Pairs (winner, loser, multiplier) that the data themselves rank strictly, the heaviest first."""
        won = {rival.token for rival in self.winners}
        pairs = [(i, j, weight) for (i, j), weight in self.strict.items() if i in won and j not in won]
        return tuple(sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1])))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The explanation as codes with numbers."""
        facts = [self._shares]
        if not self.is_known:
            facts.append(Fact("explanation.unseen_last", {"last": self.names[self.last]}))
        if self.tie is not TieBreak.NONE:
            why = {} if self.reason is None else {"case": "reason", "reason": self.reason}
            tie = {"tokens": self._named(self.chain[0]), "tie": Fact(self.tie.value), **why}
            facts.append(Fact("explanation.tie", tie))
        elif self.is_known and len(self.winners) > 1:
            facts.append(Fact("explanation.one_component"))
        if len(self.chain) > 1:
            order = " > ".join(" = ".join(self._named(group)) for group in self.chain)
            facts.append(Fact("explanation.priority", {"order": order}))
        return (*facts, *self._rankings)

    @property
    def _shares(self) -> Fact:
        """The fact that names the next tokens."""
        last = self.names[self.last]
        if len(self.winners) == 1:
            return Fact("explanation.next", {"last": last, "token": self.names[self.winners[0].token]})
        if self.tie is TieBreak.UNKNOWN:
            tokens = self._named([rival.token for rival in self.winners])
            return Fact("explanation.unknown_shares", {"last": last, "tokens": tokens})
        shares = [
            Fact("explanation.share", {"token": self.names[rival.token], "probability": rival.probability})
            for rival in self.winners
        ]
        return Fact("explanation.shares", {"last": last, "tokens": shares})

    @property
    def _rankings(self) -> list[Fact]:
        """The facts that name the tokens below the winners: by the data, through chains, or by the margin alone."""
        facts, winners = [], len(self.winners)
        ranked = {j for _, j, _ in self.reasons}
        if ranked:
            pairs = [
                Fact("explanation.pair", {"winner": self.names[i], "loser": self.names[j]})
                for i, j, _ in self.reasons[:MAX_LISTED_PAIRS]
            ]
            more = len(self.reasons) - len(pairs)
            case = {"case": "more"} if more else {}
            facts.append(Fact("explanation.ranked", {"pairs": pairs, "more": more, **case}))
        implied = [rival.token for rival in self.rivals if rival.token in self.implied - ranked]
        if implied:
            facts.append(Fact("explanation.implied", {"tokens": self._named(implied), "winners": winners}))
        compared = {*ranked, *self.chain[0], *self.implied}
        inferred = [rival.token for rival in self.rivals if rival.token not in compared]
        if inferred and self.is_known:
            facts.append(Fact("explanation.inferred", {"tokens": self._named(inferred), "winners": winners}))
        return facts

    def _named(self, tokens: Sequence[int]) -> list[str]:
        return [self.names[token] for token in tokens]

    def __str__(self) -> str:
        return "\n".join(map(str, self.facts))

    def __repr__(self) -> str:
        mix = ", ".join(f"{self.names[rival.token]}: {rival.probability:.3g}" for rival in self.winners)
        return f"Explanation(last={self.names[self.last]}, {{{mix}}}, n_others={len(self.rivals) - len(self.winners)})"

    def _columns(self) -> dict[str, Any]:
        columns = {
            name: [getattr(rival, name) for rival in self.rivals]
            for name in ("count", "height", "component", "probability")
        }
        tokens = [rival.token for rival in self.rivals]
        return {"token": tokens, "name": [self.names[token] for token in tokens], **columns}
