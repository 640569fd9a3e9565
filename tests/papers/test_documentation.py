"""Pages written from the code: they are fresh, complete, and the machinery that writes them can see what is missing."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from fake_claims import fake_claim
from marginlens.errors import InputError
from marginlens.papers import Implementation, registered
from marginlens.statements import WORDS
from marginlens_papers import documentation
from marginlens_papers.claims import catalogue
from marginlens_papers.documentation import (
    TestCitation,
    cited_by_tests,
    gaps,
    readme_with,
    theorems_page,
)

ROOT = Path(__file__).resolve().parents[2]


# ---- this checkout


def test_the_pages_say_what_the_code_says():
    written = documentation.pages(ROOT)
    for name in (documentation.THEOREMS, documentation.README):
        assert (ROOT / name).read_text(encoding="utf-8") == written[name], f"{name} is stale: run make docs"


def test_every_statement_has_a_function_and_a_test():
    claims = catalogue.claims()
    assert gaps(registered(), cited_by_tests(ROOT), claims) == []


# ---- the machinery


def implemented(label, name="att_svm", module="marginlens.svm.attention", inside=False):
    return Implementation("A", label, module, name, "Shortest p that separates |x|.", inside=inside)


def test_gaps_name_every_label_that_lacks_something():
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


def test_the_page_leads_from_statement_to_function_test_and_claim():
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


def test_the_readme_keeps_all_but_the_table():
    begin, end = "<!-- written by make docs: begin -->", "<!-- written by make docs: end -->"
    assert readme_with("NEW", f"before\n{begin}\nold\n{end}\nafter\n") == f"before\n{begin}\nNEW\n{end}\nafter\n"
    with pytest.raises(InputError, match=r"README\.md must hold the lines"):
        readme_with("NEW", f"before\n{begin}\nafter\n")


def test_pictures_are_the_first_figure_of_a_claim_and_the_last_of_an_example(tmp_path, monkeypatch):
    claim = fake_claim(documentation.PICTURED_CLAIM, draw=lambda found: {"paths": Figure(), "more": Figure()})
    monkeypatch.setattr(catalogue, "claims", lambda: (claim,))
    example = tmp_path / documentation.PICTURED_EXAMPLE
    example.parent.mkdir(parents=True)
    example.write_text("import matplotlib.pyplot as plt\nplt.figure()\nplt.show()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["documentation", "pictures"])
    documentation.main()
    for name in (documentation.PICTURE, documentation.PICTURE_OF_EXAMPLE):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
