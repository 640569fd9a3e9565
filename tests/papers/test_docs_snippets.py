"""README, citation and the pages under docs: their Python runs as printed, their commands exist, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from one_command import command

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
README = DOCS.parent / "README.md"
LONGEST_EXAMPLE = 15


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page):
    """The places that a link can name: the page's headings, as they are written in an address."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.slow
@pytest.mark.parametrize("name", [page.name for page in PAGES if blocks(page, "python")])
def test_the_snippets_of_a_page_run_one_after_the_other_as_printed(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(DOCS / name, "python")), name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().err == ""


def test_the_examples_of_the_readme_run_as_printed_and_reach_the_max_margin_solutions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    examples = blocks(README, "python")
    assert all(len(example.splitlines()) <= LONGEST_EXAMPLE for example in examples)
    exec(compile("\n".join(examples), "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    (shown,) = blocks(README, "text")  # what the first example prints
    assert printed.startswith(shown.rstrip())
    for of, smallest in (("matrix", 0.95), ("direction", 0.999)):
        assert float(re.search(rf"cosine with the max-margin {of} ([\d.]+)", printed)[1]) > smallest


def test_the_citation_names_this_version_and_every_paper():
    import marginlens
    from marginlens.papers import BIBLIOGRAPHY

    citation = (DOCS.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {marginlens.__version__}\n" in citation
    for paper in BIBLIOGRAPHY.values():
        assert f'title: "{paper.title}"\n    year: {paper.year}\n' in citation


def commands():
    """Every command line that a page prints, with the options it names."""
    found = []
    for page in (*PAGES, README, DOCS.parent / "CONTRIBUTING.md"):
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
        subcommand = {"text": more, "bench": more, "sweep": more if more != ["plan"] else ["run"]}.get(name, [])
        help_page = run(*subcommand, "--help")
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


def test_functions_that_the_page_of_papers_names_exist():
    import marginlens
    from marginlens import data, dynamics, graphs, nexttoken, risk, svm, theory

    index = (DOCS / "papers.md").read_text(encoding="utf-8")
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
