"""The folder of a probe: its page, its numbers and its pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marginlens.runtime.files import write_folder
from marginlens.runtime.probe_folders import CURVES, CURVES_PNG, CURVES_SVG, LAB, NUMBERS, PAGE

if TYPE_CHECKING:
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.monitor.alarms import Alarm
    from marginlens.probe.result import CheckpointCurves, ProbeResult


def write_report(
    folder: Path, result: ProbeResult | CheckpointCurves | ProbeDifference, alarms: Sequence[Alarm] | None = None
) -> None:
    """Write the page of a probe, its numbers and its pictures into a folder, which is replaced as a whole.

    Args:
        alarms: the alarms of a monitored run, whose curves are not written as separate pictures.
    """
    write_folder(folder, _files(result, alarms), "out")


def _files(
    result: ProbeResult | CheckpointCurves | ProbeDifference, alarms: Sequence[Alarm] | None
) -> dict[str, bytes]:
    """Return the files of the folder by name."""
    from marginlens.probe.difference import ProbeDifference
    from marginlens.probe.page import checkpoint_page, difference_page, draw_curves, probe_page
    from marginlens.probe.result import ProbeResult

    numbers = result.to_dict()
    if isinstance(result, ProbeDifference):
        return {PAGE: difference_page(result).encode(), NUMBERS: _json(numbers)}
    if isinstance(result, ProbeResult):
        from marginlens.lab import lab_page

        page = probe_page(result, lab=LAB).encode()
        return {PAGE: page, LAB: lab_page().encode(), NUMBERS: _json(numbers)}
    if alarms is not None:
        numbers["alarms"] = [alarm.to_dict() for alarm in alarms]
        return {PAGE: checkpoint_page(result, alarms).encode(), CURVES: _json(numbers)}
    from marginlens.plotting.files import png, svg

    figure = draw_curves(result)
    pictures = {CURVES_PNG: png(figure), CURVES_SVG: svg(figure)}
    return {PAGE: checkpoint_page(result).encode(), **pictures, CURVES: _json(numbers)}


def _json(numbers: object) -> bytes:
    return json.dumps(numbers, ensure_ascii=False, allow_nan=False, indent=1).encode()
