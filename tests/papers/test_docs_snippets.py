"""The pages under docs: what they print as Python runs, what they print as commands exists, and their links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from one_command import command

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page):
    """The places that a link can name: the page's headings, as they are written in an address."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("name", [page.name for page in PAGES if blocks(page, "python")])
def test_the_snippets_of_a_page_run_one_after_the_other_as_printed(name, tmp_path):
    code = "\n".join(blocks(DOCS / name, "python"))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def commands():
    """Every command line that a page prints, with the options it names."""
    found = []
    for page in (*PAGES, DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"):
        inline = re.findall(r"`(marginlens [^`]+)`", page.read_text(encoding="utf-8"))
        printed = "\n".join([*blocks(page, "sh"), *(" ".join(one.split()) for one in inline)])
        for line in re.findall(r"^marginlens ([a-z]+(?: [a-z]+)?) ?(.*)$", printed, flags=re.MULTILINE):
            found.append((page.name, *line))
    return found


def test_commands_of_the_pages_exist_with_their_options():
    told = commands()
    assert len(told) >= 5
    for page, words, rest in told:
        name, *more = words.split()
        run, _ = command(name)
        help_page = run(*(more if name == "text" else ()), "--help")
        assert help_page.exit_code == 0, f"{page}: marginlens {words}"
        for option in re.findall(r"--[a-z-]+", rest.split("#")[0]):
            assert option in help_page.output, f"{page}: marginlens {words} {rest}"


def test_every_link_leads_to_a_file_and_a_heading():
    for page in (*PAGES, *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))):
        for target, _, place in re.findall(r"\]\(([^)#]*)(#?)([^)]*)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            leads_to = page.parent / target if target else page
            assert leads_to.exists(), f"{page.name} links to {target}"
            assert not place or place in anchors(leads_to), f"{page.name} links to {target}#{place}"


def test_functions_that_the_index_names_exist():
    import marginlens
    from marginlens import data, dynamics, graphs, nexttoken, risk, svm, theory

    index = (DOCS / "README.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(?:ml\.)?([a-z]+(?:_[a-z0-9]+)+)(?:\([a-z, ]*\))?`", index))
    assert {"predict_limit", "closed_form_candidate"} <= names
    for name in names:
        assert any(
            hasattr(part, name)
            for part in (
                marginlens,
                data,
                dynamics,
                graphs,
                nexttoken,
                risk.NextTokenRisk,
                svm,
                theory,
                theory.Prediction,
            )
        ), name
