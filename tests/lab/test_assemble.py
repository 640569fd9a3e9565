"""The page as one file: what it may refer to, which modules it takes, and that every process writes the same bytes."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab_kernels import PAGE, needs_node
from marginlens.lab.assemble import Module, bundle, lab_page, ordered, read_module, write_lab
from marginlens.result import palette
from refusals import refused

MAX_SIZE = 400_000  # bytes of the whole file
PRESET = {
    "name": "X",
    "title": "</script><script>alert(1)</script>",
    "problem": {"keys": [[[1.0, 0.0], [0.0, 0.0]]], "scores": [[1.0, 0.0]]},
    "starts": [[0.0, 0.0]],
    "view": {},
}


class _Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.text[self._open] = self.text.get(self._open, "") + data


def test_the_page_needs_no_other_file() -> None:
    page = lab_page()
    elements = _Elements(page)
    addresses = [
        value
        for _, given in elements.found
        for name, value in given.items()
        if name in {"src", "href", "srcset", "action"}
    ]
    assert addresses
    assert all(address is not None and address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"@import|url\(\s*['\"]?(?!#|data:)", elements.text["style"])
    script = bundle()
    assert not re.search(r"\b(fetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|import\()", script)
    assert set(re.findall(r"https?://[\w./-]*", page + script)) <= {"http://www.w3.org/2000/svg"}


def test_the_page_is_small() -> None:
    assert len(lab_page().encode()) <= MAX_SIZE


def test_the_page_holds_the_bundle() -> None:
    packed = base64.b64decode(_Elements(lab_page()).text["bundle"])
    assert zlib.decompress(packed, -zlib.MAX_WBITS).decode() == bundle()


def test_embedded_data_cannot_break_out_of_the_script() -> None:
    elements = _Elements(lab_page(problem={"labels": [1], "note": "</script>"}, presets=[PRESET]))
    assert json.loads(elements.text["presets"]) == [PRESET]
    assert json.loads(elements.text["problem"])["note"] == "</script>"


def test_every_process_writes_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / f"{seed}.html" for seed in (1, 2)]
    for seed, file in enumerate(files, start=1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        code = f"import marginlens.lab; marginlens.lab.write_lab({str(file)!r})"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert files[0].read_bytes() == files[1].read_bytes() == lab_page().encode()


def test_write_lab_returns_the_path(tmp_path: Path) -> None:
    path = write_lab(tmp_path / "lab.html", presets=[PRESET])
    assert path.read_text(encoding="utf-8") == lab_page(presets=[PRESET])


@needs_node
def test_the_bundle_is_a_script(tmp_path: Path) -> None:
    file = tmp_path / "bundle.js"
    file.write_text(bundle(), encoding="utf-8")
    done = subprocess.run(["node", "--check", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_imports_and_exports_are_turned_into_constants() -> None:
    source = """// A module.
import { a, b as c } from "../kernels/x.js";
import {
  d,
} from "./y.js";

export const E = 1; // a constant
export function f() {}
export class G {}
export async function h() {}
"""
    module = read_module("page/z.js", source)
    assert module.imports == (("kernels/x.js", "a, b: c"), ("page/y.js", "d"))
    assert "A module." not in module.code
    assert module.exports == ("E", "f", "G", "h")
    assert "const { a, b: c } = module_kernels_x;" in module.wrapped()
    assert "return { E, f, G, h };" in module.wrapped()


@pytest.mark.parametrize(
    "source",
    [
        'import x from "./x.js";',
        'import * as x from "./x.js";',
        'import "./x.js";',
        'import { x } from "https://example.org/x.js";',
        'import { x } from "package";',
        'import { x } from "../../x.js";',
        'const x = await import("./x.js");',
        "export default 1;",
        "export let x = 1;",
        "export { x };",
        "export const { a } = b;",
        'export * from "./x.js";',
    ],
)
def test_unsupported_module_syntax_is_refused(source: str) -> None:
    with refused("page/z.js"):
        read_module("page/z.js", f"{source}\n")


def test_a_cycle_is_refused() -> None:
    modules = {f"page/{a}.js": Module(f"page/{a}.js", ((f"page/{b}.js", "x"),), ("x",), "") for a, b in ("xy", "yx")}
    with refused("imports"):
        ordered(modules)


def test_an_import_of_a_missing_export_is_refused() -> None:
    modules = {
        "page/x.js": read_module("page/x.js", 'import { a as b, c } from "./y.js";\n'),
        "page/y.js": read_module("page/y.js", "export const c = 1;\n"),
    }
    with refused("page/x.js"):
        ordered(modules)


def test_global_and_local_limits_have_the_colours_of_figures_and_report() -> None:
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    assert f"--limit-0: {palette.GLOBAL.lower()};" in style
    assert f"--limit-1: {palette.LOCAL.lower()};" in style


def test_writing_the_lab_imports_no_theory() -> None:
    """Which would take longer to import than the page takes to write."""
    script = "import sys, marginlens.lab; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "marginlens.lab.assemble" in imported
    assert not {"marginlens.theory", "marginlens.dynamics", "loky", "matplotlib"} & set(imported)
