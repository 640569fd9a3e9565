"""`marginlens statement`: every label leads to something that can be imported, however it is written."""

import re
import subprocess
import sys
from importlib import import_module

import pytest

import marginlens
from marginlens.cli.statement import statements_named
from marginlens.papers import listed_statements, registered
from marginlens_papers.claims import catalogue
from marginlens_papers.documentation.statements import (
    EARLIER_LABELS,
    PROOF_STEPS,
    WORDS,
    public_name,
    statement_rows,
)
from one_command import command, refusal

statement, numbers = command("statement")


@pytest.mark.parametrize("label", ["A Thm 3", "a theorem 3", "  A  thm 3 "])
def test_a_statement_lists_its_functions_and_claims(label):
    (told,) = numbers(label)
    assert told["statement"] == "A Thm 3"
    names = {one["name"] for one in told["functions"]}
    assert {"marginlens.predict_limit", "marginlens.basin_cone"} == names
    assert "A-F2" in told["claims"]
    assert "cone" in told["says"]
    assert len(told["claims_say"]) == len(told["claims"])
    assert any("gradient descent converges to that direction" in sentence for sentence in told["claims_say"])
    assert not any("$" in sentence for sentence in told["claims_say"])
    shown = statement(label).stdout
    assert told["says"] in shown
    assert told["claims_say"][0] in shown
    assert "written in marginlens.theory.prediction" in shown
    assert f"marginlens reproduce --only {','.join(told['claims'])}" in shown


def test_every_statement_has_a_text_and_cited_ones_their_own():
    every = statements_named(None)
    assert all(one["says"] for one in every)
    labels = {one["statement"] for one in every}
    cited = {label for label in labels if re.match(r"[ABC]'? (Thm|Prop|Lemma|Cor|Def|Definition|Assumption)\b", label)}
    assert len(cited) > 60
    assert cited <= set(WORDS) <= labels


WRITTEN = {
    "c eq 5": "C Eq. (5)",
    "A svm": "A (SVM)",
    "b lemma 2": "B Lemma 2",
    "b lem. 2": "B Lemma 2",
    "A Thm. 3": "A Thm 3",
    "a app e": "A App. E",
    "C section 3.1": "C §3.1",
    "A figure 1b": "A Fig 1(b)",
    "c algo gd": "C Algo-GD",
    "A ATT-SVM’": "A ATT-SVM'",
}


@pytest.mark.parametrize("written", WRITTEN)
def test_labels_are_found_without_punctuation(written):
    assert [one["statement"] for one in statements_named(written)] == [WRITTEN[written]]


def test_every_label_finds_only_itself():
    for one in statements_named(None)[::3]:
        assert statements_named(one["statement"]) == [one]


@pytest.mark.parametrize("earlier", EARLIER_LABELS)
def test_labels_of_an_earlier_paper_version_find_the_current_ones(earlier):
    (one,) = statements_named(earlier)
    assert one["statement"] == EARLIER_LABELS[earlier]
    assert one["functions"]
    assert earlier in one["earlier_labels"]


def test_a_statement_names_its_earlier_label():
    assert "in the earlier version of the paper: B' Lemma C.5" in statement("B' lemma c.5").stdout
    listed = {one["statement"] for one in numbers("B'")}
    assert {"B' Eq. (22)", "B' Lemma 4.5", "B Lemma 17"} <= listed
    assert "B Fig 2" not in listed


def test_a_step_inside_a_function_names_the_function():
    (told,) = numbers("A Eq 49")
    (function,) = told["functions"]
    assert function["role"] == "uses"
    assert function["name"] == "marginlens.basin_cone"
    shown = statement("A Eq 49").stdout
    assert "inside marginlens.basin_cone" in shown
    assert "condition on the radius" in shown
    assert "inside" in statement("A").stdout


def test_a_proof_step_names_the_statement_it_proves():
    implemented = {one.citation for one in registered()}
    assert set(PROOF_STEPS.values()) <= implemented
    assert not set(PROOF_STEPS) & implemented
    (told,) = numbers("A Eq. (34)")
    assert told["belongs_to"] == "A Lemma 7"
    assert told["functions"] == told["claims"] == []
    assert "Proof step of A Lemma 7: " in statement("A Eq. (34)").stdout
    assert [one["statement"] for one in numbers("A eq 54")] == ["A Eq. (54a)", "A Eq. (54b)", "A Eq. (54c)"]
    assert "Illustration of C Thm 3" in statement("C figure 1").stdout


@pytest.mark.parametrize(("paper", "last"), [("A", 85), ("C", 35)])
def test_every_numbered_equation_has_a_row(paper, last):
    known = {
        int(number)
        for one in statements_named(paper)
        for number in re.findall(r"Eq\. \((\d+)[a-z]?\)", one["statement"])
    }
    assert set(range(1, last + 1)) <= known


def test_a_label_needs_no_quotes():
    assert numbers("A", "Eq", "10") == numbers("A Eq. (10)")


def test_every_registered_function_can_be_imported_under_its_name():
    for one in registered():
        name = public_name(one)
        package, first = name[: -len(one.name) - 1], one.name.split(".")[0]
        assert getattr(import_module(package), first).__module__ == one.module
        if first in marginlens.__all__:
            assert package == "marginlens"


def test_a_letter_lists_its_paper_and_no_argument_lists_all():
    every, of_c = numbers(), numbers("c")
    assert {one["statement"] for one in of_c} == {
        one["statement"] for one in every if one["statement"].startswith("C ")
    }
    labels = {label for claim in catalogue.claims() for label in claim.labels}
    assert labels | {one.citation for one in registered()} | set(PROOF_STEPS) == {one["statement"] for one in every}
    assert "Graph-SVM" in statement("C").stdout


@pytest.mark.parametrize(("label", "near"), [("A Thm 99", "A Thm 8"), ("what", "A Thm 3"), ("", "A Thm 3")])
def test_an_unknown_label_suggests_similar_ones(label, near):
    said = refusal(statement(label))
    assert said.startswith("LABEL must be")
    assert near in said


def test_the_stored_statement_list_equals_the_codes():
    claims = catalogue.claims()
    assert listed_statements() == statement_rows(registered(), claims), "statements.jsonl is stale: run make docs"


def test_a_lookup_imports_no_numerical_packages():
    code = "import sys, marginlens_command as c; sys.argv = ['marginlens', 'statement', 'C', 'Lemma', '3']\n"
    code += "try: c.main()\nexcept SystemExit: print(*sys.modules)"
    shown, modules = subprocess.check_output([sys.executable, "-c", code], text=True).rsplit("\n", 2)[:2]
    assert shown.startswith("C Lemma 3\n")
    assert not {"numpy", "scipy", "rich", "marginlens_papers.claims"} & set(modules.split())


def test_claims_of_installed_packages_are_listed(monkeypatch):
    class Added:
        id, labels, statement = "NTP-L1", ("A Thm 3", "N Lemma 1"), "A claim of another package."

    monkeypatch.setattr("marginlens.cli.statement._claims_of_packs", lambda: (Added(),))
    assert statements_named("A Thm 3")[0]["claims"][-1] == "NTP-L1"
    (added,) = numbers("N Lemma 1")
    assert (added["says"], added["claims"]) == (Added.statement, ["NTP-L1"])
    assert "NTP-L1: A claim of another package." in statement("N Lemma 1").stdout


def test_statements_are_found_without_optional_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert any(record.citation == "A Thm 3" for record in registered())
