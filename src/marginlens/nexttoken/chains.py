"""Attention without positions as a context-weighted Markov chain learnt from prompts, and predictions that change the topic."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import numpy as np
import scipy

from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable, check_sequence
from marginlens.errors import InputError, index_array, real_array, whole_number
from marginlens.graphs import priority_graphs
from marginlens.graphs.priority import component_order
from marginlens.nexttoken.automaton import NextTokenAutomaton
from marginlens.nexttoken.correction import cyclic_correction
from marginlens.papers import implements
from marginlens.result import Result
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray, Seed

# Largest difference of a row sum of probabilities from one.
_ROW_SUM_ATOL = 1e-9


@implements("X", "C1", "C2")
@dataclass(frozen=True, repr=False, eq=False)
class MarkovChain(Result):
    r"""A chain over tokens whose transitions are weighted by the counts of the tokens in the context: self-attention with C Eᵀ = I.

    .. math:: \Pr(i \mid X) = \frac{m_i(X)\, P_{ki}}{\sum_j m_j(X)\, P_{kj}}, \qquad P_{ki} \propto \exp(e_i^\top W e_k)

    with k the last token of X and :math:`m_i(X)` the number of times that X holds token i (after the abstract of Ildiz et al.,
    arXiv 2402.13512; the statements are ours).

    Args:
        P: (n_vocabulary, n_vocabulary) table; row k has the probabilities after token k if the context holds each token once, or nan if
            they are not known.

    Examples:
        >>> from marginlens.nexttoken import MarkovChain
        >>> chain = MarkovChain([[0.5, 0.5], [0.2, 0.8]])
        >>> print(chain.predict_proba([0, 0, 1]).round(4))  # token 0 counts twice
        [0.3333 0.6667]
    """

    P: FloatArray
    quantities = "{P:#} tokens, identified={identified.sum}"

    def __post_init__(self) -> None:
        table = np.array(self.P, dtype=np.float64)
        rows = table[~np.isnan(table).any(axis=1)] if table.ndim == 2 else table
        if (
            table.ndim != 2
            or len(table) != table.shape[1]
            or (rows < 0.0).any()
            or np.any(abs(rows.sum(axis=1) - 1.0) > _ROW_SUM_ATOL)
        ):
            raise InputError("P", "a square table whose rows are probabilities, or nan", f"shape {table.shape}")
        object.__setattr__(self, "P", table)

    @property
    def x(self) -> FloatArray:
        """The table P."""
        return self.P

    @property
    def identified(self) -> BoolArray:
        """The tokens after which the transitions are known, (n_vocabulary,) booleans."""
        return np.asarray(~np.isnan(self.P).any(axis=1))

    # ---- from and to weights

    @classmethod
    def from_weights(cls, W: ArrayLike, E: ArrayLike) -> MarkovChain:
        """Make the chain of a layer.

        Args:
            W: (d_model, d_model) the key-query weights.

            E: (n_vocabulary, d_model) the embeddings.
        """
        table = real_array(E, "E", ("n_vocabulary", "d_model"))
        weights = real_array(W, "W", (table.shape[1], table.shape[1]))
        return cls(scipy.special.softmax((table @ weights @ table.T).T, axis=1))

    def to_weights(self, E: ArrayLike) -> FloatArray:
        """Find the shortest weights with this chain.

        Args:
            E: (n_vocabulary, d_model) linearly independent embeddings.

        Returns:
            (d_model, d_model) W.

        Raises:
            InputError: if the embeddings are dependent, or P has zeros or unknown rows.

        Examples:
            >>> import numpy as np
            >>> from marginlens.nexttoken import MarkovChain
            >>> W = MarkovChain([[0.5, 0.5], [0.2, 0.8]]).to_weights(np.eye(2))
            >>> print(MarkovChain.from_weights(W, np.eye(2)).P.round(3))
            [[0.5 0.5]
             [0.2 0.8]]
        """
        table = real_array(E, "E", (len(self.P), "d_model"))
        if np.linalg.matrix_rank(table) < len(table):
            raise InputError("E", "linearly independent embeddings", "dependent ones", "Then several chains share a W.")
        if not (self.P > 0.0).all():
            raise InputError("P", "positive probabilities for a finite W", "zeros or rows that are not known")
        inverse, logits = np.linalg.pinv(table), np.log(self.P).T
        # A constant for each last token is free; this shift makes W shortest.
        free = inverse.T @ inverse
        shift = (np.ones(len(table)) @ free @ logits) / (np.ones(len(table)) @ free @ np.ones(len(table)))
        return np.asarray(inverse @ (logits - shift) @ inverse.T)

    # ---- estimation

    @classmethod
    def fit(cls, data: SequenceDataset) -> MarkovChain:
        r"""Estimate the chain of maximum likelihood from prompts and their next tokens: W^cyc of paper C, row by row.

        Take the graph of the prompts that end in token k, with an edge from each next token to the others of its prompt. If it is one
        strong component with all tokens, the log-likelihood has one finite maximum and row k of P is identified. Otherwise there is no
        maximum or there are several, and the row is nan.

        Args:
            data: the prompts with their next tokens.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> from marginlens.nexttoken import MarkovChain
            >>> data = ml.SequenceDataset([[0, 1], [0, 1], [0, 1]], [0, 0, 1], np.eye(2))
            >>> print(MarkovChain.fit(data).P.round(3))
            [[  nan   nan]
             [0.667 0.333]]
        """
        check_realizable(as_sequences(data))
        K = data.n_vocabulary
        one_hot = copy(data)
        one_hot.E = np.eye(K)
        graphs = priority_graphs(one_hot)
        logits = cyclic_correction(one_hot, graphs=graphs).x
        whole = [k for k, graph in graphs.items() if len(graph.nodes) == K and graph.n_components == 1]
        P = np.full((K, K), np.nan)
        P[whole] = scipy.special.softmax(logits[:, whole].T, axis=1)
        return cls(P)

    def log_likelihood(self, data: SequenceDataset) -> float:
        """Compute the mean log-probability of the next tokens of prompts."""
        starts, owner = as_sequences(data).offsets[:-1], np.repeat(data.last, data.lengths)
        weights = self.P[owner, data.tokens]
        of_label = np.add.reduceat(np.where(data.is_label, weights, 0.0), starts)
        return float(np.mean(np.log(of_label / np.add.reduceat(weights, starts))))

    # ---- generation

    def predict_proba(self, sequence: ArrayLike) -> FloatArray:
        """Compute the probability of each token to follow a sequence.

        Args:
            sequence: token ids; the last one attends.

        Returns:
            (n_vocabulary,) probabilities, zero for tokens that the sequence lacks.
        """
        ids = check_sequence(sequence, len(self.P))
        weights = np.bincount(ids, minlength=len(self.P)) * self.P[ids[-1]]
        return np.asarray(weights / weights.sum())

    def sample(self, prompts: ArrayLike, n_tokens: int, rng: Seed) -> IntArray:
        """Continue prompts of equal length with random tokens.

        Args:
            prompts: (n_prompts, length) token ids.

            n_tokens: number of tokens to draw for each prompt.

            rng: a `numpy.random.Generator`, or a whole number to seed one.

        Returns:
            (n_prompts, n_tokens) ids, each drawn given all before it.

        Examples:
            >>> from marginlens.nexttoken import MarkovChain
            >>> chain = MarkovChain([[0.0, 1.0], [1.0, 0.0]])
            >>> chain.sample([[0, 1], [1, 0]], 4, rng=0)
            array([[0, 1, 0, 1],
                   [1, 0, 1, 0]])
        """
        ids = index_array(prompts, "prompts", f"ids from 0 to {len(self.P) - 1} of shape (n_prompts, length)", (-1, -1))
        if ids.size == 0 or ids.min() < 0 or ids.max() >= len(self.P):
            raise InputError(
                "prompts",
                f"ids from 0 to {len(self.P) - 1}",
                "none" if ids.size == 0 else f"{ids.min()} to {ids.max()}",
            )
        whole_number(n_tokens, "n_tokens", at_least=0)
        generator, rows = as_generator(rng), np.arange(len(ids))
        counts = np.stack([np.bincount(row, minlength=len(self.P)) for row in ids]).astype(np.float64)
        last, drawn = ids[:, -1], np.empty((len(ids), n_tokens), dtype=np.int64)
        for t in range(n_tokens):
            heights = np.cumsum(counts * self.P[last], axis=1)
            last = np.sum(heights <= generator.random(len(ids))[:, None] * heights[:, -1:], axis=1)
            counts[rows, last] += 1.0
            drawn[:, t] = last
        return drawn

    def winners(self) -> FloatArray:
        r"""Compute the exponents with which one trajectory collapses into a token w once w makes up nearly all of it.

        .. math:: \frac{1}{t}\,\#\{s \le t : x_s = i\} \approx t^{P_{wi}/P_{ww} - 1}

        While nearly all of the context is w, a token i follows w with odds :math:`m_i P_{wi} : m_w P_{ww}`. To first order in
        the share of the other tokens, the share of i therefore falls like that power. All other tokens fade if w is its own
        most probable successor; otherwise some token grows instead. A trajectory that has not begun to repeat w may decline
        differently.

        Returns:
            (n_vocabulary,) for each w the slowest of the exponents, nan if w cannot win.
        """
        own = np.diag(self.P)
        others = np.where(np.eye(len(self.P), dtype=bool), 0.0, self.P).max(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            exponent = others / own - 1.0
        return np.where(exponent < 0.0, exponent, np.nan)


@dataclass(frozen=True, repr=False, eq=False)
class TopicChange(Result):
    """The next token of a model of several topics, and whether it leaves the topic of its input.

    Attributes:
        changed: whether the input holds a token that the topic's own graphs rank above the most probable next token.

        predicted: that next token.

        expected: the tokens of the input that its topic does not rank below another one.

        outnumbers: whether the input holds the predicted token more often than each token of higher priority in the topic.

        tied: whether the model ties the predicted token with all of these, and so no longer ranks them.
    """

    changed: bool
    predicted: int
    expected: IntArray
    outnumbers: bool
    tied: bool
    quantities = "{changed:changed|unchanged}, predicted={predicted}, expected={expected}"

    @property
    def x(self) -> FloatArray:
        """The tokens that the topic expects, as numbers."""
        return self.expected.astype(np.float64)


@implements("X", "C3")
def topic_change(topic: NextTokenAutomaton, mixed: NextTokenAutomaton, sequence: ArrayLike) -> TopicChange:
    """Decide whether a model trained on several topics leaves the topic of an input, by automata and without training.

    A topic is a set of priority graphs (after the abstract of Jia and Diaz-Rodriguez, arXiv 2501.06382; the statement is ours).
    `mixed`, made from the sequences of all topics, has every edge of `topic`. It therefore ranks no token above another that
    the topic ranks higher, unless both are in one component. There the shares decide: multiplicity times the mixing weights. A
    change needs such a tie, and a count that outweighs the ratio of weights.

    Args:
        topic: the automaton of the input's own topic.

        mixed: the automaton of all topics.

        sequence: the input; the topic's graph of its last token must hold all of its tokens.

    Returns:
        The next token and whether it leaves the topic.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.nexttoken import topic_change
        >>> topic = ml.SequenceDataset([[0, 1, 2]], [0], np.eye(3))
        >>> both = ml.SequenceDataset([[0, 1, 2], [0, 1, 2]], [0, 1], np.eye(3))
        >>> change = topic_change(*map(ml.NextTokenAutomaton.fit, (topic, both)), [0, 1, 1, 2])
        >>> change.changed, change.predicted
        (True, 1)
    """
    ids = check_sequence(sequence, topic.n_vocabulary)
    last, (tokens, counts) = int(ids[-1]), np.unique(ids, return_counts=True)
    own, all_topics = topic.graphs.get(last), mixed.graphs.get(last)
    if own is None or all_topics is None or (own.components_of(tokens) < 0).any():
        raise InputError("sequence", "tokens that the topic's graph of its last token holds", f"{ids.tolist()}")
    component, order = own.components_of(tokens), component_order(own).reach
    # (n_tokens, n_tokens) whether the topic ranks token i above token j.
    ranked = order[np.ix_(component, component)] & (component[:, None] != component)
    predicted = mixed.predict(ids)
    winner = int(np.flatnonzero(tokens == predicted)[0])
    above, component = ranked[:, winner], all_topics.components_of(tokens)
    outnumbers = bool(above.any() and (counts[winner] > counts[above]).all())
    tied = bool((component[above] == component[winner]).all())
    return TopicChange(bool(above.any()), predicted, tokens[~ranked.any(axis=0)], outnumbers, tied)
