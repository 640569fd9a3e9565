"""The result of a descent: where and how it ended, and the quantities kept along the way."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marginlens.dynamics.brackets import run_bracket
from marginlens.dynamics.record import Record, Saved
from marginlens.errors import InputError, batch_index, whole_number
from marginlens.norms import Norm
from marginlens.result import Result, Tabular, axes_for, draw_matrix
from marginlens.result.drawing import draw_fan
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.risk.attention import ExcessRisk
from marginlens.risk.protocol import Risk
from marginlens.runtime.files import read_result, write_result
from marginlens.runtime.progress import ProgressCallback
from marginlens.status import Status, names_of, statuses
from marginlens.svm.solution import Bracket
from marginlens.typing import Axes, FloatArray, Index, IntArray

RUN_FORMAT = "marginlens-run-1"  # the entry "format" of a file that holds a run
_PER_RUN = ("final", "attention", "selected", "norm", "steps_taken")
ENDINGS = (Status.COMPLETED, Status.STATIONARY, Status.NON_FINITE, Status.TIED)


@dataclass(frozen=True, eq=False)
class Trajectory(Result, Tabular):
    """A finished descent or flow.

    Attributes:
        final: the last iterate, `(…, *risk.shape)`: p, W, the factors of W, or v followed by p. `x` is another name for it.

        attention: softmax at the end, (…, n_inputs, n_tokens), zero if there is no token; None for a risk that has none.

        selected: the token with the largest attention in each input, (…, n_inputs).

        norm: ‖final‖, (…).

        status: a Status, or an array (batch,) of them.

        steps_taken: how many steps each run took, (…).

        saved: the quantities that `record` keeps.

        risk: the training risk.

        continuation: the state from which `resume` continues.

        witness: the sums of the run that `bracket` uses, None if its loop keeps none.

    `to_frame()` has one row per saved step (of each run of a batch): problem (of a batch), step, and every kept quantity.
    Margins, selections, attention and iterates are lists; the excess risk is log_excess_risk (natural logarithm) and
    excess_sign. If nothing was recorded, there is one row for the end: step, status, norm, selected.

    There is no "converged" flag, because the norm diverges while the direction settles. Compare `final` with a prediction.
    """

    final: FloatArray
    attention: Any
    selected: IntArray
    norm: FloatArray
    status: Any
    steps_taken: IntArray
    saved: Saved = field(repr=False)
    risk: Any = field(default=None, repr=False)
    continuation: Any = field(default=None, repr=False)
    witness: Any = field(default=None, repr=False)

    @property
    def x(self) -> FloatArray:
        """The last iterate."""
        return self.final

    def split(self) -> Any:
        """Return the parts of the last iterate by name: v and p for a joint descent, Q and K for a descent on factors."""
        if not hasattr(self.risk, "split"):
            raise InputError("risk", "one whose points have parts, such as JointRisk", type(self.risk).__name__)
        return self.risk.split(self.final)

    def resume(
        self, n_steps: int, *, record: Record | None = None, progress: ProgressCallback | None = None
    ) -> Trajectory:
        """Continue the run for `n_steps` further steps. The result equals that of one run of all steps. Runs that ended early
        do not change.

        Args:
            record: the quantities to keep of the further steps, which are numbered from `steps_taken` on; none by default.

            progress: as for the descent itself.
        """
        if self.continuation is None:
            raise InputError(
                "This run cannot go on: only what descend returns can, as a whole. Start anew at run.final."
            )
        more = whole_number(n_steps, "n_steps", at_least=0)
        resumed: Trajectory = self.continuation.resume(more, record, progress)
        return resumed

    @property
    def is_batch(self) -> bool:
        """True if there is a leading batch axis."""
        return isinstance(self.status, np.ndarray)

    def __len__(self) -> int:
        return len(self.status) if self.is_batch else 1

    def __getitem__(self, index: Index) -> Trajectory:
        """Return one run without the batch axis for a whole number, a batch for a slice, a mask (batch,) or a list. Neither can
        be resumed.
        """
        places = batch_index(index, len(self), "runs")
        if not self.is_batch:
            if isinstance(places, int):
                return self
            raise InputError("index", "0 for a single run, which has no batch axis", repr(index))
        per_run = ("final", "attention", "selected", "norm", "status", "steps_taken")
        taken: dict[str, Any] = {
            name: None if (value := getattr(self, name)) is None else value[places] for name in per_run
        }
        kept = {name: _at(value, places) for name, value in self.saved.items()}
        has_brackets = self.witness is not None or hasattr(self.risk, "residual_attention")
        risk = self.risk[places] if has_brackets and self.risk.is_batch else self.risk
        witness = None if self.witness is None else self.witness[places]
        return Trajectory(**taken, saved=Saved(self.saved.steps, kept), risk=risk, witness=witness)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run, without its risk, to a .npz file that `Trajectory.load` reads; `data.save` writes the dataset."""
        per_run = {name: value for name in _PER_RUN if (value := getattr(self, name)) is not None}
        arrays = {**per_run, "status": names_of(self.status), "saved.steps": self.saved.steps}
        for name, value in self.saved.items():
            parts = {".sign": value.sign, ".log": value.log} if isinstance(value, ExcessRisk) else {"": value}
            arrays.update({f"saved.{name}{part}": array for part, array in parts.items()})
        write_result(path, RUN_FORMAT, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], risk: Risk | None = None) -> Trajectory:
        """Read a run from a file that `save` wrote. It cannot be resumed; continue with `descend(risk, start=run.final)`.

        Args:
            risk: the training risk, for `split`; None if that is not needed.
        """
        expected = "a .npz file that Trajectory.save wrote"
        required = ("final", "selected", "norm", "status", "steps_taken", "saved.steps")
        arrays = read_result(path, RUN_FORMAT, expected, required)
        saved: dict[str, Any] = {}
        for name in (
            name.removeprefix("saved.") for name in arrays if name.startswith("saved.") and name != "saved.steps"
        ):
            base, _, part = name.partition(".")
            if part == "sign":
                saved[base] = ExcessRisk(arrays[f"saved.{base}.sign"], arrays[f"saved.{base}.log"])
            elif not part:
                saved[base] = arrays[f"saved.{base}"]
        per_run: dict[str, Any] = {name: arrays.get(name) for name in _PER_RUN}
        return cls(**per_run, status=statuses(arrays["status"]), saved=Saved(arrays["saved.steps"], saved), risk=risk)

    def bracket(self, norm: Norm) -> Bracket:
        r"""Bound the smallest norm :math:`\|x^\star\|` that separates the selected tokens, with a proof from the run alone.

        .. math:: \frac{b^\top\lambda}{\|A^\top\lambda\|_*} \le \|x^\star\| \le \frac{\|x\|}{\min_r a_r^\top x/b_r}

        x is the last iterate, or its difference from an earlier one; λ is the residual attention at the end, or its sum over
        the later steps if the loop has kept it (as the compiled loop of optimizers in any norm does). For factors x is Q Kᵀ.

        Args:
            norm: the norm of the margin problem; that of the optimizer gives the narrowest bracket.

        Returns:
            A `Bracket` of floats, or of arrays (batch,); x attains at least the share
            `bracket.lower * min_r a_r·x/b_r / norm.value(x)` of the best margin.
        """
        if self.risk is None:
            raise InputError(
                "run", "one that knows its risk", "one that was loaded without", "Give it: Trajectory.load(path, risk)."
            )
        if not self.is_batch:
            return run_bracket(self.risk, self.final, self.selected, norm, self.witness)
        runs = [self[j] for j in range(len(self))]
        brackets = [run_bracket(run.risk, run.final, run.selected, norm, run.witness) for run in runs]
        return Bracket(*(np.array(bounds) for bounds in zip(*brackets, strict=True)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the run. Returns the axes.

        It draws what was kept over the steps: the excess risk, else the risk, else the norm; for a batch a fan of curves with
        their median. If only iterates in the plane were kept, it draws their paths. Without any of these it draws the final
        attention of one run, inputs by tokens; for a batch the selected tokens' attention in the input in which they have
        least; and if there is no attention, the final weights by colour.
        """
        ax = axes_for(ax)
        name = next((name for name in ("excess_risk", "risk", "norm") if name in self.saved), None)
        if name is not None and len(self.saved.steps):
            values = self.saved[name]
            curves = np.atleast_2d(values.log if name == "excess_risk" else values)
            draw_fan(ax, self.saved.steps, np.where(np.isfinite(curves), curves, np.nan))
            words = {"excess_risk": "log of the excess risk", "risk": "risk", "norm": "norm of the weights"}
            ax.set(xlabel="steps", ylabel=words[name])
        elif "x" in self.saved and self.final.shape[-1:] == (2,) and self.final.ndim == 1 + self.is_batch:
            for path in self.saved["x"] if self.is_batch else self.saved["x"][None]:
                ax.plot(*path.T, color=LOCAL, linewidth=1.2, alpha=0.8)
                ax.plot(*path[-1], marker="o", markersize=4, color=GLOBAL)
            ax.set(xlabel="first weight", ylabel="second weight")
        elif self.attention is None:
            draw_matrix(ax, self.final.reshape(-1, self.final.shape[-1]))
            ax.set(xlabel="column", ylabel="row")
        elif self.is_batch:
            ax.hist(np.min(np.max(self.attention, axis=-1), axis=-1), bins=20, range=(0.0, 1.0), color=LOCAL)
            ax.set(xlabel="attention of a selected token, in the input where it has least", ylabel="runs")
        else:
            draw_matrix(ax, np.atleast_2d(self.attention), "Blues", 0.0)
            ax.set(xlabel="token", ylabel="input")
        return ax

    def _columns(self) -> dict[str, Any]:
        n_saved, n_runs = len(self.saved.steps), len(self)
        if not n_saved:
            ends = {"step": self.steps_taken, "status": self.status, "norm": self.norm, "selected": self.selected}
            single = {name: value if self.is_batch else [value] for name, value in ends.items()}
            return ({"problem": np.arange(n_runs)} if self.is_batch else {}) | single
        columns: dict[str, Any] = {"problem": np.repeat(np.arange(n_runs), n_saved)} if self.is_batch else {}
        columns["step"] = np.tile(self.saved.steps, n_runs)
        for name, value in self.saved.items():
            parts = {name: value}
            if isinstance(value, ExcessRisk):
                parts = {"log_excess_risk": value.log, "excess_sign": value.sign}
            for part, array in parts.items():
                columns[part] = np.reshape(array, (n_runs * n_saved, *array.shape[1 + self.is_batch :]))
        return columns

    def __repr__(self) -> str:
        shape = self.norm.shape
        if not shape:
            chosen = self.selected[:8].tolist()
            listed = f"{chosen}" if len(self.selected) <= 8 else f"{str(chosen)[:-1]}, … {len(self.selected)} in all]"
            return f"Trajectory(norm={float(self.norm):.4g}, selected={listed}, status={self.status.name})"
        early = int(np.sum(self.status != Status.COMPLETED))
        return f"Trajectory({shape[0]} runs, norms {self.norm.min():.4g} … {self.norm.max():.4g}, {early} ended early)"


def _at(value: Any, places: Index) -> Any:
    return type(value)(value.sign[places], value.log[places]) if hasattr(value, "sign") else value[places]
