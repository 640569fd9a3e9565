"""The page's kernels from Python: problems in their JSON form, and node to answer requests about them."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import marginlens as ml
import marginlens.lab
from marginlens.data.files import tokens_json
from marginlens.lab.assemble import page_words

KERNELS = Path(marginlens.lab.__file__).parent / "kernels"
PAGE = KERNELS.parent / "page"
CORE = Path(__file__).parent / "lab" / "core.mjs"
_RUNNER = CORE.parent / "run_kernels.mjs"
_NODE = shutil.which("node")
needs_node = pytest.mark.skipif(_NODE is None, reason="node is not installed, so the page's kernels were not run")
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@cache
def _environment() -> dict[str, str]:
    """The variables of node, with the file that holds the page's words as the page gets them."""
    words = Path(mkdtemp(prefix="marginlens-lab-")) / "words.json"
    words.write_text(json.dumps(page_words()), encoding="utf-8")
    return {**os.environ, "MARGINLENS_LAB_WORDS": str(words)}


def run_node(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run node with the page's words at hand, and `given` on its stdin."""
    assert _NODE is not None
    return subprocess.run(
        [_NODE, *arguments], input=given, capture_output=True, text=True, check=False, env=_environment()
    )


def ask(requests: list[dict[str, Any]]) -> list[Any]:
    """What the page's modules answer, request by request; a refusal as {"refusal": its sentence}."""
    done = run_node(str(_RUNNER), given=json.dumps(requests))
    assert done.returncode == 0, done.stderr
    return [_with_numbers(answer) for answer in json.loads(done.stdout)]


def ask_of(call: str, *problems: dict[str, Any], **given: Any) -> list[Any]:
    """What the page's modules answer to one question about each of several problems."""
    return ask([{"call": call, "problem": problem, **given} for problem in problems])


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_numbers(entry) for entry in value]
    return _NUMBERS.get(value, value) if isinstance(value, str) else value


def as_json(data: ml.TokenDataset, head: Any, **settings: Any) -> dict[str, Any]:
    """A problem in the form that the page reads; `head` None where head and attention are trained together."""
    return {**tokens_json(data, head, trains_head=head is None), **settings}


def run_in_page(code: str, given: Any = None) -> Any:
    """What an ES module writes with `answer(value)`, beside the page's modules: `import { Store } from "./state.js"`; `given` is JSON."""
    source = re.sub(r' from "\./', f' from "{PAGE.as_uri()}/', code)
    source = re.sub(r' from "\.\./kernels/', f' from "{KERNELS.as_uri()}/', source)
    before = f'import "{CORE.as_uri()}";\n'
    before += f"const given = {json.dumps(given)};\nconst answer = (value) => console.log(JSON.stringify(value));\n"
    done = run_node("--input-type=module", "-", given=before + source)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
