"""The measurements of a run, in memory and as a Parquet file with one row for each step, layer and head."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError, require
from marginlens.probe.measures import MEASURES
from marginlens.probe.monitor.alarms import WITHDRAWN
from marginlens.probe.result import CheckpointCurves
from marginlens.runtime.files import as_path, check_place, resolved, written_aside
from marginlens.typing import FloatArray
from marginlens.words import Fact

KEYS = ("step", "layer", "head")
SUFFIX = ".parquet"
METADATA = b"marginlens.monitor"
EXPECTED_FILE = "a Parquet file that a monitor wrote"
WRITE_SECONDS = 30.0  # between two times that the file is written, so that writing does not take longer than measuring


@dataclass(eq=False)
class RunRecord:
    """Measurements by step, in the order of training.

    Attributes:
        facts: properties of the run: model, n_inputs, layer_names, finished, withdrawn, and any other JSON values.

        rows: arrays (n_layers, n_heads) by step and name.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, dict[str, FloatArray]] = field(default_factory=dict)
    n_written: int = 0  # measurements that are in the file
    written_at: float = -WRITE_SECONDS  # on a clock that only goes forward

    def add(self, step: int, measures: dict[str, FloatArray]) -> None:
        """Record a measurement, and replace an earlier one at the same step."""
        shape = measures["entropy"].shape
        before = next(iter(self.rows.values()), measures)["entropy"].shape
        if shape != before:
            raise InputError(
                "model",
                f"the model of this run, with {before[0]} layers of {before[1]} heads",
                f"{shape[0]} layers of {shape[1]} heads",
            )
        self.rows[step] = measures

    def drop_after(self, step: int) -> None:
        """Forget measurements after a step, which a resumed run makes again."""
        self.rows = {known: values for known, values in self.rows.items() if known <= step}
        self.facts["withdrawn"] = [one for one in self.facts.get("withdrawn", ()) if one["step"] <= step]
        self.facts["finished"] = False
        self.n_written = min(self.n_written, len(self.rows))

    def curves(self) -> CheckpointCurves:
        """Return the measurements as curves over training."""
        if not self.rows:
            raise InputError(
                "monitor", "one that has measured something", "one without a measurement", "Train for a step first."
            )
        steps = sorted(self.rows)
        first = self.rows[steps[0]]["entropy"]
        names = [measure.name for measure in MEASURES if any(measure.name in self.rows[k] for k in steps)]
        missing = np.full(first.shape, np.nan)
        return CheckpointCurves(
            model=str(self.facts.get("model", "model")),
            names=tuple(f"step {step}" for step in steps),
            steps=np.array(steps, dtype=float),
            measures={name: np.stack([self.rows[step].get(name, missing) for step in steps]) for name in names},
            n_inputs=int(self.facts.get("n_inputs", 0)),
            notes=(
                *(Fact("note.recorded", {"sentence": sentence}) for sentence in self.facts.get("notes", ())),
                *(Fact(WITHDRAWN, numbers) for numbers in self.facts.get("withdrawn", ())),
            ),
            layer_names=tuple(self.facts.get("layer_names", ())),
            is_finished=bool(self.facts.get("finished", False)),
        )

    # ---- the file

    def is_due(self) -> bool:
        """Return whether the file should be rewritten: at the first measurement, and half a minute after the last time."""
        return self.n_written == 0 or time.monotonic() - self.written_at >= WRITE_SECONDS

    def write(self, path: Path) -> None:
        """Write all rows aside and rename the file into place: a killed process leaves either the old or the new file."""
        pa, columns = _arrow(), self.curves()._columns()
        del columns["checkpoint"]
        kinds: dict[str, Any] = {"step": np.int64, "layer": np.int32, "head": np.int32}
        arrays = {name: np.asarray(values).astype(kinds.get(name, np.float32)) for name, values in columns.items()}
        table = pa.table({name: pa.array(values, from_pandas=True) for name, values in arrays.items()})  # nan is null
        table = table.replace_schema_metadata({METADATA: json.dumps(self.facts).encode()})
        with written_aside(path, "path") as aside:
            pa.parquet.write_table(table, aside, compression="zstd", use_dictionary=list(KEYS), write_statistics=False)
            with aside.open("rb") as stream:
                os.fsync(stream.fileno())
        self.n_written, self.written_at = len(self.rows), time.monotonic()


def read_record(path: str | os.PathLike[str]) -> RunRecord:
    """Read the measurements in a file that a monitor wrote."""
    place = as_path(path, "path", EXPECTED_FILE)
    pa = _arrow()
    if not place.is_file():
        raise InputError("path", EXPECTED_FILE, f"{str(path)!r}, which is not there")
    try:
        table = pa.parquet.read_table(place)
    except (pa.ArrowException, OSError) as problem:
        raise InputError("path", EXPECTED_FILE, f"{str(path)!r}, which cannot be read as one") from problem
    facts = (table.schema.metadata or {}).get(METADATA)
    if facts is None or not set(KEYS) <= set(table.column_names) or not table.num_rows:
        raise InputError("path", EXPECTED_FILE, f"{str(path)!r}, which holds something else")
    step, layer, head = (table[name].to_numpy() for name in KEYS)
    shape = (int(layer.max()) + 1, int(head.max()) + 1)
    steps, place_of = np.unique(step, return_inverse=True)
    rows: dict[int, dict[str, FloatArray]] = {int(k): {} for k in steps}
    for name in table.column_names[len(KEYS) :]:
        stacked = np.full((len(steps), *shape), np.nan)
        stacked[place_of, layer, head] = table[name].to_numpy().astype(float)
        for k, values in zip(steps.tolist(), stacked, strict=True):
            if np.isfinite(values).any() or name == "entropy":
                rows[k][name] = values
    return RunRecord(json.loads(facts), rows, len(rows))


def read_run(path: str | os.PathLike[str]) -> CheckpointCurves:
    """Read the curves of a monitored run from the Parquet file that `AttentionMonitor` wrote.

    Returns:
        Curves of shape (n_measurements, n_layers, n_heads), one for each measure, for example for `find_alarms`.
    """
    return read_record(path).curves()


def check_path(path: str | os.PathLike[str]) -> Path:
    """Check before a run begins that a file can be written at a path."""
    place = resolved(as_path(path, "path", "a name that ends in .parquet"))
    check_place(place, "path", (SUFFIX,))
    _arrow()
    return place


def set_aside(path: Path) -> Path:
    """Rename the file of an earlier run to the first free name with a number: attention.parquet becomes attention-1.parquet."""
    number = 1
    while (other := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return path.rename(other)


def _arrow() -> Any:
    require("pyarrow", "monitor", "The file of a monitored run")
    import pyarrow
    import pyarrow.parquet

    return pyarrow
