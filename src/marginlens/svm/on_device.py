"""ATT-SVM in batches on a GPU: the device solves and checks, and the CPU's careful method serves what is left unproved."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.device_tokens import DeviceTokens, PlacedTokens
from marginlens.errors import reject
from marginlens.gpu.device import Device, parts, to_host
from marginlens.gpu.margins import DeviceMargins, MarginArrays, is_solved_by_warps, solve_margins
from marginlens.kinds import kind_of
from marginlens.norms import L2, Norm
from marginlens.svm.attention import solve_selection
from marginlens.svm.pairs import token_pairs
from marginlens.svm.solution import MarginSolution
from marginlens.svm.solvers.batch import INFEASIBLE, UNVERIFIED
from marginlens.svm.solvers.least_distance import OUTCOME_STATUS, shortest_above
from marginlens.typing import IntArray


@solve_selection.register
def solve_on_device(placed: PlacedTokens, selected: Any, norm: Norm, query: Any) -> MarginSolution:
    """The `MarginSolution` of `least_distance` for a selection (…, n_inputs): as many problems at a time as the device holds."""
    data, device = placed
    check_plain(device, norm, query)
    alpha = data.selection(selected)
    rows, pairs = token_pairs(data, alpha)
    lower = (pairs[..., 0] >= 0).astype(np.float64)
    batch, n_rows = data.as_batch(), data.n_inputs * (data.n_tokens - 1)
    if not is_solved_by_warps(n_rows, data.d_key):
        return shortest_above(rows, lower, pairs=pairs)
    lengths = None if batch.mask.all() else batch.lengths
    arrays: tuple[Any, ...] = (batch.K, batch.y, lengths, alpha.reshape(-1, data.n_inputs))
    token_bytes = 8 * (data.n_inputs * data.n_tokens * data.d_key + 3 * data.n_inputs)
    fetched: list[list[Any]] = []
    for first, last in parts(device, len(batch), token_bytes + MarginArrays.bytes_per_problem(n_rows, data.d_key)):
        with device.active():
            K, y, sizes, chosen = (
                None if array is None else device.xp.asarray(np.ascontiguousarray(array[first:last]))
                for array in arrays
            )
            found = solve_device_tokens(DeviceTokens(K, y, lengths=sizes, device=device), chosen)
            fetched.append([to_host(part) for part in (found.x, found.status, found.multipliers, found.active)])
    x, outcome, multipliers, active = (np.concatenate(part) for part in zip(*fetched, strict=True))
    infeasible = outcome == INFEASIBLE
    certificate = np.where(infeasible[:, None], multipliers, np.nan)
    multipliers[infeasible] = np.nan
    status = OUTCOME_STATUS[outcome]
    if data.is_batch:
        return MarginSolution(rows, lower, None, x, status, multipliers, None, active, certificate, pairs)
    present = (np.arange(data.n_tokens - 1) < data.lengths[:, None] - 1).reshape(n_rows)
    multipliers, active, certificate = (array[:, present] for array in (multipliers, active, certificate))
    problem = (rows[None], lower[None], None, x, status, multipliers, None, active, certificate, pairs[None])
    return MarginSolution(*problem)[0]  # one problem has exactly its own pairs


@solve_selection.register
def solve_device_tokens(data: DeviceTokens, selected: Any, norm: Norm = L2(), query: Any = None) -> DeviceMargins:
    """The solutions for problems whose arrays are on a device, where they stay."""
    device, xp = data.device, data.device.xp
    check_plain(device, norm, query)
    n_rows = data.n_inputs * (data.n_tokens - 1)
    with device.active():
        alpha = data.selection(selected)
        out = MarginArrays.empty(device, len(data), n_rows, data.d_key)
        if is_solved_by_warps(n_rows, data.d_key):
            solve_margins(device, data.K, alpha, data.lengths, out)
        else:
            out.outcome[:] = UNVERIFIED
        out.x[out.outcome == INFEASIBLE] = np.nan
        rest = to_host(xp.flatnonzero(out.outcome == UNVERIFIED))
        if len(rest):
            _solve_on_cpu(data, alpha, rest, out)
    return DeviceMargins(*out, len(rest))


def check_plain(device: Device, norm: Norm, query: Any) -> None:
    """Refuse queries and norms that the device does not solve."""
    if query is not None or kind_of(norm) is not L2:
        raise reject("device", "'cpu' with queries or a norm other than L2", repr(device.name))


def _solve_on_cpu(data: DeviceTokens, alpha: Any, rest: IntArray, out: MarginArrays) -> None:
    """The problems of `rest` by the CPU, written into the arrays on the device."""
    xp = data.device.xp
    rows, pairs = token_pairs(data[rest].to_host(), to_host(alpha[rest]))
    solved = shortest_above(rows, (pairs[..., 0] >= 0).astype(np.float64), pairs=pairs)
    codes = np.array([int(np.flatnonzero(status == OUTCOME_STATUS)[0]) for status in solved.status])
    infeasible = codes == INFEASIBLE
    multipliers = np.where(infeasible[:, None], np.asarray(solved.certificate), solved.multipliers)
    residual = np.where(infeasible, solved.certificate_residual(), solved.kkt_residual())
    fields = (solved.x, multipliers, solved.active, codes, residual, solved.margin)
    for array, values in zip(out, fields, strict=True):
        array[rest] = xp.asarray(values)
