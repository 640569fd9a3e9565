"""Regularisation paths of a next-token decoder on fixed contexts: those of next-token weights, with supports for components."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.dynamics.paths.next_token import NextTokenSearch
from marginlens.dynamics.paths.path import no_region, path_search
from marginlens.dynamics.paths.split_risk import SplitRisk
from marginlens.errors import reject
from marginlens.losses.next_token import LogLoss
from marginlens.nexttoken.contexts import finite_part
from marginlens.risk.cross_entropy import ContextRisk
from marginlens.svm.contexts import ntp_svm
from marginlens.typing import FloatArray, IntArray

MAX_FORMED_ENTRIES = 20_000_000  # numbers of rows that a path may form


@path_search.register(ContextRisk)
def decoder_search(risk: ContextRisk, region: Any, restarts: int | None) -> NextTokenSearch:
    """The search over W of a decoder: convex, so that it takes no restarts."""
    no_region(region, "ContextRisk")
    data = risk.data
    n_formed = len(data.token) * data.n_vocabulary**2 * data.d_model
    if n_formed > MAX_FORMED_ENTRIES:
        got = f"{len(data.token)} pairs of a context and a token, {data.n_vocabulary} tokens and d_model={data.d_model}: {n_formed}"
        raise reject(
            "problem",
            f"one whose path forms at most {MAX_FORMED_ENTRIES} numbers",
            got,
            "Train it by ml.descend instead.",
        )
    return NextTokenSearch(risk, ContextSplit(risk), ntp_svm(data), finite_part(data), None, 0)  # type: ignore[arg-type]


class _Samples(NamedTuple):
    """What `SplitRisk` asks of its samples: here one for every context and token that followed it, with all tokens as entries."""

    offsets: IntArray
    labels: IntArray
    share: FloatArray
    log_counts: FloatArray


class ContextSplit(SplitRisk):
    """The cross-entropy of a decoder in coordinates along F, of the tokens that follow, and across it, of those that never do."""

    def __init__(self, risk: ContextRisk) -> None:
        data, V = risk.data, risk.shape[0]
        n = len(data.token)
        token = np.tile(np.arange(V), n)
        share = data.share[data.context] * data.probability
        self.problem = _Samples(np.arange(0, n * V + 1, V), data.token, share, np.zeros(n * V))  # type: ignore[assignment]
        self.loss, self.likelihood, self._sample = LogLoss(), True, np.repeat(np.arange(n), V)
        self._is_label = token == data.token[self._sample]
        self._score, self._top = self._is_label.astype(np.float64), np.ones(n)
        follows = data.counts.toarray() > 0.0
        self._tied = follows[data.context[self._sample], token]
        unit = np.eye(V)
        rows = (unit[token] - unit[data.token[self._sample]])[:, :, None] * risk.H[data.context[self._sample]][
            :, None, :
        ]
        inside = finite_part(data).subspace.basis
        self._set_rows(rows.reshape(n * V, -1), inside.reshape(-1, rows[0].size), risk.shape)
