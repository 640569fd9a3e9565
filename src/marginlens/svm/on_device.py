"""ATT-SVM in batches on a GPU: the device solves and checks, and the CPU solves the problems that remain unproved."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.gpu.device import Device, as_device, parts, to_host
from marginlens.gpu.margins import MarginArrays, is_solved_by_warps, solve_margins
from marginlens.svm.pairs import token_pairs
from marginlens.svm.solution import MarginSolution
from marginlens.svm.solvers.batch import INFEASIBLE, UNVERIFIED
from marginlens.svm.solvers.least_distance import OUTCOME_STATUS, shortest_above
from marginlens.typing import FloatArray, IntArray


def solve_on_device(
    device: str, data: TokenDataset, alpha: IntArray, rows: FloatArray, pairs: IntArray
) -> MarginSolution:
    """Solve ATT-SVM for a selection alpha (…, n_inputs) with given rows and pairs, as many problems at a time as the device holds."""
    place = as_device(device)
    lower = (pairs[..., 0] >= 0).astype(np.float64)
    batch, n_rows = data.as_batch(), data.n_inputs * (data.n_tokens - 1)
    if place is None or not is_solved_by_warps(n_rows, data.d_key):
        return shortest_above(rows, lower, pairs=pairs)
    lengths = None if batch.mask.all() else batch.lengths
    arrays = (batch.K, alpha.reshape(-1, data.n_inputs), lengths)
    token_bytes = 8 * (data.n_inputs * data.n_tokens * data.d_key + 3 * data.n_inputs)
    solved: list[MarginArrays] = []
    for first, last in parts(place, len(batch), token_bytes + MarginArrays.bytes_per_problem(n_rows, data.d_key)):
        with place.active():
            K, selected, sizes = (
                None if array is None else place.xp.asarray(np.ascontiguousarray(array[first:last])) for array in arrays
            )
            solved.append(MarginArrays(*map(to_host, margins_of(place, K, selected, sizes))))
    x, multipliers, active, outcome, _, _ = (np.concatenate(part) for part in zip(*solved, strict=True))
    infeasible = outcome == INFEASIBLE
    certificate = np.where(infeasible[:, None], multipliers, np.nan)
    multipliers[infeasible] = np.nan
    # One problem has exactly its own pairs.
    if not data.is_batch:
        present = (np.arange(data.n_tokens - 1) < data.lengths[:, None] - 1).reshape(n_rows)
        multipliers, active, certificate = (array[:, present] for array in (multipliers, active, certificate))
        rows, lower, pairs = rows[None], lower[None], pairs[None]
    solution = MarginSolution(
        rows=rows,
        lower=lower,
        equalities=None,
        x=x,
        status=OUTCOME_STATUS[outcome],
        multipliers=multipliers,
        equality_multipliers=None,
        active=active,
        certificate=certificate,
        pairs=pairs,
    )
    return solution if data.is_batch else solution[0]


def margins_of(device: Device, K: Any, selected: Any, lengths: Any = None) -> MarginArrays:
    """Solve problems whose arrays are on a device; the solutions stay there.

    Args:
        device: where the arrays are.

        K: keys (n, n_inputs, n_tokens, d).

        selected: tokens (n, n_inputs), int64.

        lengths: (n, n_inputs), int64, or None if no input is shorter.
    """
    n_problems, n_inputs, n_tokens, d = K.shape
    n_rows = n_inputs * (n_tokens - 1)
    with device.active():
        out = MarginArrays.empty(device, n_problems, n_rows, d)
        if is_solved_by_warps(n_rows, d):
            solve_margins(device, K, selected, lengths, out)
        else:
            out.outcome[:] = UNVERIFIED
        out.x[out.outcome == INFEASIBLE] = np.nan
        rest = to_host(device.xp.flatnonzero(out.outcome == UNVERIFIED))
        if len(rest):
            data = TokenDataset(to_host(K[rest]), np.ones((len(rest), n_inputs)))
            data = data if lengths is None else data.shortened(to_host(lengths[rest]))
            for array, values in zip(out, _solved_on_cpu(data, to_host(selected[rest])), strict=True):
                array[rest] = device.xp.asarray(values)
    return out


def _solved_on_cpu(data: TokenDataset, alpha: IntArray) -> MarginArrays:
    """Compute the same arrays on the CPU."""
    rows, pairs = token_pairs(data, alpha)
    solved = shortest_above(rows, (pairs[..., 0] >= 0).astype(np.float64), pairs=pairs)
    codes = np.array([int(np.flatnonzero(status == OUTCOME_STATUS)[0]) for status in solved.status])
    infeasible = codes == INFEASIBLE
    multipliers = np.where(infeasible[:, None], np.asarray(solved.certificate), solved.multipliers)
    residual = np.where(infeasible, solved.certificate_residual(), solved.kkt_residual())
    return MarginArrays(solved.x, multipliers, solved.active, codes, residual, solved.margin)
