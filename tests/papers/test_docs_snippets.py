"""README, citation and the pages under docs: their Python runs as printed, their commands exist, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

import marginlens as ml
from one_command import command
from refusals import raised
from typed_pages import blocks, type_line, type_page

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
README = DOCS.parent / "README.md"
START = DOCS / "start.md"
UNTYPED = ("releasing.md",)  # which changes, tags and pushes the repository
LONGEST_EXAMPLE = 15  # lines
FIRST_RESULT = 25  # lines from the top of the start
MOST_WORDS = 500  # of the README, which is to be read in one go


def anchors(page):
    """The places that a link can name: the page's headings, as they are written in an address."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.fixture
def samples(tmp_path, monkeypatch):
    """The folder in which a page is typed, with the sample files that pages speak of, and no browser."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    ml.data.write_samples(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [page.name for page in PAGES if page.name not in (START.name, *UNTYPED) and blocks(page)]
)
def test_every_block_of_a_page_runs(name, samples):
    type_page(DOCS / name)


@pytest.mark.parametrize(
    ("blocks_of_page", "complaint"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "page.md shows"),
        ("```sh\nmarginlens samples .\n```\n\n```text\nWritten to elsewhere\n…\n```\n", "page.md shows"),
        ("```sh\nmarginlens predict nowhere.npz\n```\n", "nowhere.npz"),
        ("```sh\npip install 'marginlens[nothing]'\n```\n", "nothing"),
        ("```sh\nmake tea\n```\n", "make tea"),
        ("```sh\nrm -r /\n```\n", "no rule"),
    ],
)
def test_a_page_with_wrong_output_is_detected(blocks_of_page, complaint, samples):
    (samples / "page.md").write_text(blocks_of_page, encoding="utf-8")
    with raised(AssertionError, complaint):
        type_page(samples / "page.md")


def test_the_release_guide_uses_existing_make_targets():
    lines = [line for block in blocks(DOCS / "releasing.md") for line in block.code.splitlines()]
    made = [line.partition(" && ")[0] for line in lines if line.startswith("make ")]
    assert len(made) >= 5
    for line in made:
        type_line(line)


def test_the_start_and_readme_print_what_they_show(tmp_path, monkeypatch, samples):
    type_page(README)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    type_page(START)


def test_the_readme_fits_one_screen_and_shows_what_its_example_prints():
    text = README.read_text(encoding="utf-8")
    assert len(text.split()) <= MOST_WORDS
    (example,) = [block for block in blocks(README) if block.language == "python"]
    assert example.shown is not None
    assert len(example.code.splitlines()) <= LONGEST_EXAMPLE


def test_the_start_shows_a_result_at_once_and_says_which_extra_a_recipe_needs():
    text = START.read_text(encoding="utf-8")
    assert text[: text.index("```text")].count("\n") < FIRST_RESULT
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert sections[1].startswith("Install\n")
    assert sections[-1].startswith("More about installing\n")
    recipes = sections[2:-1]
    assert len(recipes) >= 4
    for section in recipes:
        (needed,) = re.findall(r"^This needs (?:no extra|the extra `(\w+)`)", section, flags=re.MULTILINE)
        installed = re.findall(r"^pip install 'marginlens\[(\w+)\]'$", section, flags=re.MULTILINE)
        assert installed == ([needed] if needed else []), section[:80]


def test_the_citation_names_this_version_and_every_paper():
    from marginlens.papers import BIBLIOGRAPHY

    citation = (DOCS.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {ml.__version__}\n" in citation
    for paper in BIBLIOGRAPHY.values():
        assert f'title: "{paper.title}"\n    year: {paper.year}\n' in citation


def commands():
    """Every command line that a page prints, with the options it names."""
    found = []
    for page in (*PAGES, README, DOCS.parent / "CONTRIBUTING.md"):
        inline = re.findall(r"`(marginlens [^`]+)`", page.read_text(encoding="utf-8"))
        printed = "\n".join(
            [*(one.code for one in blocks(page) if one.language == "sh"), *(" ".join(one.split()) for one in inline)]
        )
        for line in re.findall(r"^marginlens ([a-z]+(?: [a-z]+)?) ?(.*)$", printed, flags=re.MULTILINE):
            found.append((page.name, *line))
    return found


def test_commands_of_the_pages_exist_with_their_options():
    told = commands()
    assert len(told) >= 5
    for page, words, rest in told:
        run, _ = command(words.partition(" ")[0])
        help_page = run("--help")
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
    index = (DOCS / "papers.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(?:ml\.)?([a-z]+(?:_[a-z0-9]+)+)(?:\([a-z, ]*\))?`", index))
    assert {"predict_limit", "closed_form_candidate"} <= names
    homes = (ml, ml.data, ml.dynamics, ml.graphs, ml.nexttoken, ml.NextTokenRisk, ml.svm, ml.theory, ml.Prediction)
    assert [name for name in names if not any(hasattr(home, name) for home in homes)] == []
