"""Presets of the lab by their names in `presets.json`, and links that open the page with a preset or with your own problem."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from marginlens.data import SequenceDataset
from marginlens.errors import InputError
from marginlens.lab.problem_files import LabProblem, page_problem
from marginlens.names import nearest

# Tokens of the text tab.
MAX_VOCABULARY = 400
VERSION = "1"


@dataclass(frozen=True)
class Preset:
    """An example of the lab: a problem with its starts and a view, or a text.

    Args:
        name: the name, such as "A-F1b".

        title: a description in a few words.

        caption: a description in one or two sentences.

        group: the group in the menu.

        problem: the problem in the plane; if the preset is a text, the problem on the other tab.

        starts: the starts of its runs, 1 to 8.

        view: the settings of the plane that differ from the page's defaults.

        text: the settings of the text tab, if the preset is for it.

        claim: the claim of the ledger with this problem, or "".
    """

    name: str
    title: str
    caption: str
    group: str
    problem: LabProblem
    starts: tuple[tuple[float, float], ...]
    view: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)
    claim: str = ""

    @property
    def link_name(self) -> str:
        """The name in links, `lab.html#the-start-decides`: that of its claim, or its title in small letters."""
        return self.name if self.claim else re.sub("[^a-z0-9]+", "-", self.title.lower())

    def to_dict(self) -> dict[str, Any]:
        """Return the preset as the page takes it."""
        facts = {"name": self.name, "title": self.title, "caption": self.caption, "group": self.group}
        facts |= {"claim": self.claim} if self.claim else {}
        return {**facts, **self.state()}

    def state(self) -> dict[str, Any]:
        """Return the state that the preset opens, without settings that are the page's defaults."""
        problem = self.problem.to_dict()
        for key in ("format", "version", "start"):
            del problem[key]
        shown: dict[str, Any] = {"preset": self.name, "problem": problem, "starts": list(map(list, self.starts))}
        shown["view"] = dict(self.view)
        return shown | ({"tab": "text", "text": dict(self.text)} if self.text else {})


@cache
def presets() -> tuple[Preset, ...]:
    """Return all presets, in the order of the menu."""
    entries = json.loads((files("marginlens.lab") / "presets.json").read_text(encoding="utf-8"))
    return tuple(map(_preset_of, entries))


def _preset_of(entry: dict[str, Any]) -> Preset:
    facts = {key: entry[key] for key in ("name", "title", "caption", "group", "view")}
    optional = {key: entry[key] for key in ("text", "claim") if key in entry}
    problem = LabProblem.from_dict(entry["problem"], f"the preset {entry['name']}")
    return Preset(**facts, **optional, problem=problem, starts=tuple((x, y) for x, y in entry["starts"]))


def preset(name: str) -> Preset:
    """Return the preset of a name, its own or that in links, ignoring case."""
    known = {spelling.lower(): entry for entry in presets() for spelling in (entry.name, entry.link_name)}
    if not isinstance(name, str) or name.lower() not in known:
        names = [entry.link_name for entry in presets()]
        raise InputError("preset", f"one of {', '.join(names)}", repr(name), nearest(str(name), names))
    return known[name.lower()]


def sequences_text(data: SequenceDataset, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the text tab with the sequences themselves.

    Args:
        data: sequences over one-hot tokens.

        names: (n_vocabulary,) the names of the tokens.
    """
    if data.n_vocabulary > MAX_VOCABULARY:
        raise InputError(
            "data", f"sequences over at most {MAX_VOCABULARY} tokens for the page", f"{data.n_vocabulary} tokens"
        )
    if not np.array_equal(data.E, np.eye(data.n_vocabulary)):
        raise InputError("data", "sequences with one-hot embeddings for the page", "embeddings E of their own")
    samples = [data[i][0].tolist() for i in range(len(data))]
    return {"source": "", "sequences": {"names": list(names), "samples": samples, "labels": data.labels.tolist()}}


# What the page can open with.
Shown = str | Preset | LabProblem | Mapping[str, Any]


def permalink(shown: Shown) -> str:
    """Return the hash, including "#", that opens the lab with a preset, a problem or a state.

    Args:
        shown: a preset or its name, a `LabProblem` in the plane, or a state as JSON values; settings that a state leaves out
            are the page's defaults.

    Returns:
        A hash such as "#1.q1bK…", to append to the address of a file that `write_lab` wrote. It is the same in every process.
    """
    text = json.dumps(state_of(shown), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"#{VERSION}.{base64.urlsafe_b64encode(deflated(text.encode())).decode().rstrip('=')}"


def deflated(content: bytes) -> bytes:
    """Deflate the content to a third of its size, as a stream without header, which the page inflates."""
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeezed.compress(content) + squeezed.flush()


def state_of(shown: Shown) -> dict[str, Any]:
    """Return the state of the page that shows a preset, a problem or a state, without settings that are the page's defaults."""
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
    raise InputError(
        "shown", "the name of a preset, a Preset, a LabProblem or a state with a problem", repr(shown)[:60]
    )
