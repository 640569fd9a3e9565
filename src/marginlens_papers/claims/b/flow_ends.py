"""Where the flow along p is at a given norm, to a few digits: for claims that follow hundreds of flows and only ask what they select."""

from __future__ import annotations

from scipy.integrate import LSODA
from scipy.optimize import brentq

from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics import flow
from marginlens.dynamics.flow import MINIMUM_RADIUS, KeySpanField, UntilNorm
from marginlens.embeddings import Parameters
from marginlens.embeddings.one_step import in_their_span
from marginlens.risk import AttentionRisk
from marginlens.runtime.threads import single_blas_thread
from marginlens.typing import FloatArray

LONGEST = 1e9  # arc length that no flow reaches


def embedding_flow_end(model: Parameters, data: LabelledSequences, norm: float, rtol: float) -> FloatArray:
    """The same as `embedding_flow(model, data, until=UntilNorm(norm), tolerance=rtol).final`, within the tolerance."""
    span = in_their_span(model, data)
    return span.point(flow_end(span.tokens, span.head, span.start, norm, rtol))


def flow_end(data: TokenDataset, head: FloatArray, start: FloatArray, norm: float, rtol: float) -> FloatArray:
    """The same as `flow(data, head, start=start, until=UntilNorm(norm), rtol=rtol).final`, within the tolerance, for one problem.

    Multistep methods (LSODA) need one gradient a step and a second derivative now and then, less than half the time of `flow` at so few
    digits; errors add up over their many steps, each of which has a tenth of the tolerance. If they do not reach the norm, as at a
    finite minimum, `flow` says where the flow ends.
    """
    with single_blas_thread():
        found = _end(KeySpanField(AttentionRisk(data, head)), start, norm, 0.1 * rtol)
    return flow(data, head, start=start, until=UntilNorm(norm), rtol=rtol).final if found is None else found


def _end(field: KeySpanField, start: FloatArray, norm: float, rtol: float) -> FloatArray | None:
    """The point of this norm on the flow of `field`, None if its steps become as short as at a minimum."""
    c, outside = field.coordinates(start)
    wanted = norm**2 - float(outside @ outside)
    if float(c @ c) >= wanted or field.is_stationary(c):
        return None
    solver = LSODA(field, 0.0, c, LONGEST, rtol=rtol, atol=field.step_unit * rtol, jac=field.jacobian)
    while float(solver.y @ solver.y) < wanted:
        solver.step()
        if solver.status != "running" or (
            solver.t > 1.0 and solver.t - solver.t_old < field.step_unit * MINIMUM_RADIUS
        ):
            return None
    between = solver.dense_output()
    at = brentq(lambda s: float(between(s) @ between(s)) - wanted, solver.t_old, solver.t)
    return field.point(between(at), outside)
