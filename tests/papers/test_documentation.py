"""Pages written from the code: they are fresh, complete, and the machinery that writes them can see what is missing."""

import re
from pathlib import Path
from xml.etree import ElementTree

from fake_claims import fake_claim
from marginlens.errors import InputError
from marginlens.papers import Implementation, registered
from marginlens.words import texts
from marginlens_papers.claims import catalogue
from marginlens_papers.documentation import main, pictures
from marginlens_papers.documentation import statements as documentation
from marginlens_papers.documentation.statements import (
    WORDS,
    TestCitation,
    cited_by_tests,
    gaps,
    theorems_page,
    with_table,
)
from marginlens_papers.documentation.texts import TEXTS, texts_page
from refusals import raised

ROOT = Path(__file__).resolve().parents[2]


# ---- this checkout


def test_generated_pages_are_up_to_date():
    written = documentation.pages(ROOT)
    for name in (documentation.THEOREMS, documentation.PAPERS, documentation.OBSERVED, TEXTS):
        assert (ROOT / name).read_text(encoding="utf-8") == written[name], f"{name} is stale: run make docs"


def test_every_statement_has_a_function_and_a_test():
    claims = catalogue.claims()
    assert gaps(registered(), cited_by_tests(ROOT), claims) == []


def test_texts_page_shows_every_code_once():
    codes = re.findall(r"^\| `([a-z0-9_.]+)` \|", texts_page(), flags=re.MULTILINE)
    assert sorted(codes) == list(texts())


# ---- the machinery


def implemented(label, name="att_svm", module="marginlens.svm.attention", inside=False):
    return Implementation("A", label, module, name, "Shortest p that separates |x|.", inside=inside)


def test_gaps_list_every_incomplete_label():
    functions = [implemented("Thm 1"), implemented("Thm 2")]
    tests = [TestCitation("A Thm 1", "tests/test_x.py", "test_a"), TestCitation("A Thm 9", "tests/test_x.py", "test_b")]
    claim = fake_claim()  # cites A Fig 9(a), which needs no function, and A Thm 4
    assert gaps(functions, tests, [claim]) == [
        "A Thm 2 has a function and no test.",
        "A Thm 4 is cited by claim A-F9 and no function implements it.",
        "A Thm 9 is cited by tests/test_x.py (test_b) and no function implements it.",
    ]
    complete = [TestCitation(f"A Thm {k}", "tests/test_x.py", "test_a") for k in (1, 2, 4)]
    assert gaps([*functions, implemented("Thm 4")], complete, [claim]) == []


def test_the_page_links_statements_functions_tests_and_claims():
    tests = [TestCitation("A Thm 4", "tests/theory/test_local.py", "test_it_leaves_the_cone")]
    page = theorems_page([implemented("Thm 4"), implemented("Thm 3")], tests, [fake_claim()])
    of_A = page.partition("\n## C:")[0].splitlines()
    rows = [line for line in of_A if line.startswith(("| Thm", "| Fig"))]
    function = "[`att_svm`](../src/marginlens/svm/attention.py)"
    assert rows == [
        "| Fig 9(a) |  |  |  | A-F9 |",
        f"| Thm 3 | {WORDS['A Thm 3']} | {function} |  |  |",
        f"| Thm 4 | {WORDS['A Thm 4']} | {function} "
        "| [test_local.py](../tests/theory/test_local.py): it leaves the cone | A-F9 |",
    ]
    assert f"| Eq. (34) | {WORDS['A Eq. (34)']} |  |  |  |" in of_A  # a step of a proof


def test_updating_the_papers_page_changes_only_the_table():
    begin, end = "<!-- written by make docs: begin -->", "<!-- written by make docs: end -->"
    assert with_table("NEW", f"before\n{begin}\nold\n{end}\nafter\n") == f"before\n{begin}\nNEW\n{end}\nafter\n"
    with raised(InputError, "docs/papers.md"):
        with_table("NEW", f"before\n{begin}\nafter\n")


def test_the_film_goes_from_even_attention_to_one_token_and_loops():
    film = ElementTree.fromstring(pictures.film_of_two_starts())
    discs = [one for one in film.iter() if one.get("attributeName") == "r"]
    assert len(discs) == 6
    last = [float(one.get("values").rpartition(";")[2]) for one in discs]
    largest = max(last)
    assert [radius > 0.9 * largest for radius in last] == [True, False, False, False, False, True]
    for moved in (one for one in film.iter() if one.tag.endswith("animate")):
        times = list(map(float, moved.get("keyTimes").split(";")))
        assert times == sorted(times)
        assert (times[0], times[-1]) == (0.0, 1.0)
        assert len(times) == len(moved.get("values").split(";"))
        assert moved.get("repeatCount") == "indefinite"
    assert (ROOT / pictures.FILM).stat().st_size <= 400_000


def test_pictures_are_the_film_and_the_last_example_figure(tmp_path, monkeypatch):
    example = tmp_path / pictures.PICTURED_EXAMPLE
    example.parent.mkdir(parents=True)
    example.write_text("import matplotlib.pyplot as plt\nplt.figure()\nplt.show()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["documentation", "pictures"])
    main()
    assert (tmp_path / pictures.PICTURE_OF_EXAMPLE).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / pictures.FILM).read_bytes() == (ROOT / pictures.FILM).read_bytes()
