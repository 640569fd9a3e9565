"""Gradient flow on p with the embeddings fixed, in coordinates of their span: its cost does not grow with the width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from marginlens.data.labelled import as_labelled, embedding_tokens
from marginlens.dynamics.flow import UntilLength, UntilNorm, gradient_flow
from marginlens.dynamics.record import Record, Saved
from marginlens.dynamics.trajectory import Trajectory
from marginlens.embeddings.parameters import Parameters, as_parameters
from marginlens.errors import real_array, reject
from marginlens.papers import implements


@implements("B", "Eq. (7)")
def embedding_flow(
    model: Parameters,
    sequences: Any,
    y: Any = None,
    *,
    until: UntilNorm | UntilLength = UntilNorm(500.0),  # noqa: B008
    record: Record | None = None,
    tolerance: float = 1e-7,
) -> Trajectory:
    r"""Follow :math:`\dot p_t = -\nabla_p L(E, p_t)` from p, by arc length, with E and v fixed.

    All that the flow sees of E, p and v are their inner products, so it is followed with as many coordinates as there are tokens.

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,), such as `first_step(...).after`.
        sequences, y: labelled sequences, or token-id lists and their labels. until, record, tolerance: as `gradient_flow` takes them.
    Returns:
        The `Trajectory` that `gradient_flow(embedding_tokens(E, sequences, y), v, start=p)` gives, up to rounding.
    """
    data = as_labelled(sequences, y)
    E = real_array(as_parameters(model, "model").E, "model.E", ("n_vocabulary", "d_model"))
    p, v = (real_array(one, name, (E.shape[1],)) for name, one in (("model.p", model.p), ("model.v", model.v)))
    if len(E) < data.n_vocabulary:
        raise reject("model.E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(E)} rows")
    used = np.unique(data.tokens)
    if 2 * (len(used) + 2) > E.shape[1]:
        return gradient_flow(embedding_tokens(E, data), v, start=p, until=until, record=record, tolerance=tolerance)
    basis, coordinates = np.linalg.qr(np.concatenate([E[used], p[None], v[None]]).T)  # (d, r), (r, n_used + 2)
    narrow = np.zeros((len(E), len(coordinates)))
    narrow[used] = coordinates[:, : len(used)].T
    start = coordinates[:, -2]
    tokens, head = embedding_tokens(narrow, data), coordinates[:, -1]
    run = gradient_flow(tokens, head, start=start, until=until, record=record, tolerance=tolerance)
    kept = dict(run.saved)
    if "x" in kept:
        kept["x"] = p + (kept["x"] - start) @ basis.T
    return replace(run, final=p + basis @ (run.final - start), saved=Saved(run.saved.steps, kept))
