"""ATT-SVM in batches on a GPU: the device solves and checks, and the CPU's careful method serves what is left unproved."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.device_tokens import DeviceTokens
from marginlens.data.tokens import TokenDataset
from marginlens.errors import reject
from marginlens.gpu.device import Device, parts, to_host
from marginlens.gpu.margins import DeviceMargins, MarginArrays, Selection, is_solved_by_warps, solve_margins
from marginlens.status import Status
from marginlens.svm.pairs import token_pairs
from marginlens.svm.solution import MarginSolution
from marginlens.svm.solvers.batch import INFEASIBLE, UNVERIFIED
from marginlens.svm.solvers.least_distance import OUTCOME_STATUS, least_distance
from marginlens.typing import FloatArray, IntArray


def solve_on_device(data: TokenDataset, alpha: IntArray, device: Device) -> MarginSolution:
    """The `MarginSolution` of `least_distance` for the selection alpha (…, n_inputs), solved on a device."""
    rows, pairs = token_pairs(data, alpha)
    lower = (pairs[..., 0] >= 0).astype(np.float64)
    batch, selected = data.as_batch(), alpha.reshape(-1, data.n_inputs)
    n_rows = data.n_inputs * (data.n_tokens - 1)
    if not is_solved_by_warps(n_rows, data.d_key):
        return least_distance(rows, lower, pairs=pairs)
    is_ragged = not batch.mask.all()
    fetched: list[list[Any]] = []
    key_bytes = 8 * (data.n_inputs * data.n_tokens * data.d_key + 2 * data.n_inputs)
    for first, last in parts(device, len(batch), key_bytes + MarginArrays.bytes_per_problem(n_rows, data.d_key)):
        with device.active():
            xp = device.xp
            lengths = xp.asarray(np.ascontiguousarray(batch.lengths[first:last])) if is_ragged else None
            K, chosen = (xp.asarray(np.ascontiguousarray(array[first:last])) for array in (batch.K, selected))
            out = MarginArrays.empty(device, last - first, n_rows, data.d_key)
            solve_margins(device, Selection(K, chosen, lengths), out)
            fetched.append([to_host(array) for array in out])
    arrays = MarginArrays(*(np.concatenate(parts) for parts in zip(*fetched, strict=True)))
    if not data.is_batch:  # one problem has exactly its own pairs
        present = (np.arange(data.n_tokens - 1) < data.lengths[:, None] - 1).reshape(1, n_rows)
        arrays = arrays._replace(multipliers=arrays.multipliers[present][None], active=arrays.active[present][None])
    return _assembled(arrays, rows, lower, pairs)


def _assembled(arrays: MarginArrays, rows: FloatArray, lower: FloatArray, pairs: IntArray) -> MarginSolution:
    """One solution of what the device proved, and what the CPU says of the rest."""
    is_single = rows.ndim == 2
    A, b, names = (rows[None], lower[None], pairs[None]) if is_single else (rows, lower, pairs)
    outcome, x, multipliers, active = arrays.outcome, arrays.x, arrays.multipliers, arrays.active
    status = OUTCOME_STATUS[outcome]
    certificate = np.where((outcome == INFEASIBLE)[:, None], multipliers, np.nan)
    x[outcome == INFEASIBLE], multipliers[outcome == INFEASIBLE] = np.nan, np.nan
    rest = np.flatnonzero(outcome == UNVERIFIED)
    if len(rest):
        solved = least_distance(A[rest], b[rest], pairs=names[rest])
        x[rest], multipliers[rest], active[rest] = solved.x, solved.multipliers, solved.active
        status[rest], certificate[rest] = solved.status, solved.certificate
    fields = (x, status, multipliers, active, certificate)
    if not is_single:
        return MarginSolution(rows, lower, None, x, status, multipliers, None, active, certificate, pairs)
    x, status, multipliers, active, certificate = (field[0] for field in fields)
    farkas = certificate if status is Status.INFEASIBLE else None
    return MarginSolution(rows, lower, None, x, status, multipliers, None, active, farkas, pairs)


def solve_device_tokens(data: DeviceTokens, selected: Any) -> DeviceMargins:
    """The solutions for problems whose arrays are on a device, where they stay."""
    device, xp = data.device, data.device.xp
    n_rows = data.n_inputs * (data.n_tokens - 1)
    with device.active():
        alpha = checked_selection(data, selected)
        out = MarginArrays.empty(device, len(data), n_rows, data.d_key)
        if is_solved_by_warps(n_rows, data.d_key):
            solve_margins(device, Selection(data.K, alpha, data.lengths), out)
        else:
            out.outcome[:] = UNVERIFIED
        out.x[out.outcome == INFEASIBLE] = np.nan
        rest = to_host(xp.flatnonzero(out.outcome == UNVERIFIED))
        if len(rest):
            _solve_on_cpu(data, alpha, rest, out)
    return DeviceMargins(out.x, out.multipliers, out.active, out.outcome, out.residual, out.margin, len(rest))


def checked_selection(data: DeviceTokens, selected: Any) -> Any:
    """The token index of each input as an array (n, n_inputs) on the device of the data."""
    xp = data.device.xp
    alpha = xp.asarray(selected)
    if alpha.dtype.kind not in "iu" or alpha.shape not in ((data.n_inputs,), (len(data), data.n_inputs)):
        expected = f"whole numbers of shape ({len(data)}, {data.n_inputs}): one token index per input"
        raise reject("selected", expected, f"shape {alpha.shape} with dtype {alpha.dtype}")
    alpha = xp.ascontiguousarray(xp.broadcast_to(alpha, (len(data), data.n_inputs)).astype(np.int64))
    beyond = data.n_tokens if data.lengths is None else data.lengths
    if bool(((alpha < 0) | (alpha >= beyond)).any()):
        raise reject(
            "selected", f"token indices from 0 to the length of each input, at most {data.n_tokens - 1}", "others"
        )
    return alpha


def _solve_on_cpu(data: DeviceTokens, alpha: Any, rest: IntArray, out: MarginArrays) -> None:
    """The problems of `rest` by the CPU, written into the arrays on the device."""
    xp = data.device.xp
    rows, pairs = token_pairs(data[rest].to_host(), to_host(alpha[rest]))
    solved = least_distance(rows, (pairs[..., 0] >= 0).astype(np.float64), pairs=pairs)
    codes = np.array([int(np.flatnonzero(status == OUTCOME_STATUS)[0]) for status in solved.status])
    infeasible = codes == INFEASIBLE
    multipliers = np.where(infeasible[:, None], np.asarray(solved.certificate), solved.multipliers)
    residual = np.where(infeasible, solved.certificate_residual(), solved.kkt_residual())
    fields = (solved.x, multipliers, solved.active, codes, residual, solved.margin)
    for array, values in zip(out, fields, strict=True):
        array[rest] = xp.asarray(values)
