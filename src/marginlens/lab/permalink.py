"""Permalinks: a state of the lab as the hash of its address, "#1." and the deflated JSON in base64url, as the page writes it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from marginlens.errors import reject
from marginlens.lab.presets import Preset, preset
from marginlens.lab.problem_files import LabProblem, page_problem

Shown = str | Preset | LabProblem | Mapping[str, Any]  # what the page can open with
VERSION = "1"
_RAW_DEFLATE = -15  # window bits of a stream without header


def permalink(shown: Shown) -> str:
    """The hash, "#" included, that opens the lab with a preset, a problem or a state.

    Args:
        shown: the name of a preset or the preset, a `LabProblem` in the plane, or a state as JSON values; what a state leaves out is as at
            the page's start.
    Returns:
        A hash such as "#1.q1bK…", to be put behind the address of a file that `write_lab` wrote. The same in every process.
    """
    text = json.dumps(state_of(shown), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    deflate = zlib.compressobj(9, zlib.DEFLATED, _RAW_DEFLATE)
    packed = deflate.compress(text.encode()) + deflate.flush()
    return f"#{VERSION}.{base64.urlsafe_b64encode(packed).decode().rstrip('=')}"


def state_of(shown: Shown) -> dict[str, Any]:
    """The state of the page that shows a preset, a problem or a state, without what is as at the page's start."""
    if isinstance(shown, str):
        return preset(shown).state()
    if isinstance(shown, Preset):
        return shown.state()
    if isinstance(shown, LabProblem):
        entries = page_problem(shown).to_dict()
        start = entries.pop("start")
        del entries["format"], entries["version"]
        return {"problem": entries, "starts": [start]}
    if isinstance(shown, Mapping) and "problem" in shown:
        return dict(shown)
    raise reject("shown", "the name of a preset, a Preset, a LabProblem or a state with a problem", repr(shown)[:60])
