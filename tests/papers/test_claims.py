"""Every claim at quick effort: its bounds hold, they can fail, and its figures can be drawn."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import marginlens as ml
from fake_claims import changed
from marginlens.optimizers import NormalizedGD
from marginlens.theory.observations import run_kind
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Verdict
from marginlens_papers.claims import catalogue
from marginlens_papers.claims.a import figure_9 as a_f9
from marginlens_papers.claims.a import gradient as a_l4
from marginlens_papers.claims.a import lemmas as a_k3
from marginlens_papers.claims.a import lemmas as a_s
from marginlens_papers.claims.a import theorem_2 as a_f8
from marginlens_papers.claims.b import first_step as b_i
from marginlens_papers.claims.b import selections as b_l6
from marginlens_papers.claims.c import paths as c_t2
from marginlens_papers.claims.catalogue import claim, claims
from marginlens_papers.claims.g import theorem_2 as g_t2
from marginlens_papers.claims.ours import basins as x_b
from marginlens_papers.claims.ours import factors as x_n3
from marginlens_papers.claims.ours import mini_batches as x_n7
from marginlens_papers.report.formulas import rendered
from marginlens_papers.report.page import in_two
from quick_claims import quick_run


def is_labelled(ax):
    """Whether an axis of a panel has a label, its own or that of a panel with which it shares the axis."""
    beside, below = ax.get_shared_y_axes().get_siblings(ax), ax.get_shared_x_axes().get_siblings(ax)
    return any(other.get_xlabel() for other in below) or any(other.get_ylabel() for other in beside)


@pytest.mark.statement(
    "A Fig 1(a)", "A Fig 1(b)", "A Fig 1(c)", "A Fig 4", "A Fig 5", "A Fig 8", "A Thm 2", "A Thm 3", "A Lemma 1"
)
@pytest.mark.parametrize("claim_id", [one.id for one in claims()])
def test_a_claim_at_quick_effort(claim_id):
    """Its bounds hold, each of them decides, its words name numbers and its figures can be drawn: of one computation."""
    claim, finding, reported, optimizers = quick_run(claim_id)
    numbers = finding.numbers
    missed = {name: numbers[name] for name, bound in claim.expected.items() if not bound.holds(numbers[name])}
    assert not missed
    assert set(claim.as_stated) | set(finding.archived) <= set(numbers)
    verdict, stated = claim.judge(finding), [bound.holds(numbers[name]) for name, bound in claim.as_stated.items()]
    assert (
        (verdict is Verdict.DOES_NOT_HOLD) == (claim.known is Verdict.DOES_NOT_HOLD) == (not any([*stated, not stated]))
    )
    assert (verdict is Verdict.HOLDS_IN_PART) == (any(stated) and not all(stated))
    assert claim.known in (None, Verdict.DOES_NOT_HOLD)
    if claim.known is None and verdict is not Verdict.HOLDS_IN_PART:
        assert {*claim.expected, *claim.as_stated} - set(finding.archived), "stored runs alone make no claim hold"
    assert reported[-1][0] == reported[-1][1] > 0

    for name in claim.expected:
        beyond = Bound(low=numbers[name] + 1.0)
        assert changed(claim, expected={**claim.expected, name: beyond}).judge(finding) is Verdict.DOES_NOT_HOLD
    ran = {run_kind(optimizer) for optimizer in optimizers}
    swept = {"A-F9"}  # whose runs are those of a sweep
    assert claim.id in swept or {run_kind(run.optimizer) for run in claim.runs} <= ran, (
        "it declares what it does not run"
    )
    first, second = list(numbers)[:2]
    beyond = {first: Bound(low=numbers[first] + 1.0)}
    assert changed(claim, as_stated=beyond).judge(finding) is Verdict.DOES_NOT_HOLD
    some = changed(claim, as_stated={**beyond, second: Bound(low=numbers[second])})
    assert some.judge(finding) is Verdict.HOLDS_IN_PART

    assert any(letter.isdigit() for letter in finding.measured)
    assert "nan" not in finding.measured + finding.note
    for text in (finding.measured, finding.note):
        assert rendered(text).count("<math>") == text.count("$") / 2
    assert len(in_two(finding.note).short) <= 170, "a note opens with a short sentence"
    figures = claim.draw(finding)
    assert figures
    assert set(figures) == set(claim.figures)
    for figure in figures.values():
        figure.draw_without_rendering()
        assert all(is_labelled(ax) for ax in figure.axes if ax.axison)


@pytest.mark.parametrize("claim", claims(), ids=lambda claim: claim.id)
def test_every_number_and_figure_of_a_claim_has_a_text(claim):
    checked = {**claim.expected, **claim.as_stated}
    assert set(claim.words) == set(checked)
    assert {claim.headline, *claim.paper_numbers} <= set(checked)
    sentences = [words.sentence for words in claim.words.values()]
    assert len(set(sentences)) == len(sentences)
    for name, sentence in zip(claim.words, sentences, strict=True):
        assert " " in sentence
        assert "_" not in plain_words(sentence), f"{name} is shown by an identifier"
    for text in claim.figures.values():
        assert len(text.caption) > 40
        assert len(text.alt) > 100, "an alternative text says what is seen"
        assert text.alt not in (claim.title, text.caption)
        assert "$" not in text.alt
    texts = [claim.title, claim.statement, claim.protocol, claim.paper_value, *claim.paper_numbers.values(), *sentences]
    for text in [*texts, *(text.caption for text in claim.figures.values())]:
        assert text.count("$") % 2 == 0
        assert rendered(text).count("<math>") == text.count("$") // 2


@pytest.mark.parametrize(
    "file", sorted(Path(catalogue.__file__).parent.glob("*/claims.toml")), ids=lambda file: file.parent.name
)
def test_claim_text_files_have_exactly_their_claims(file):
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    beside = {claim.id for claim in claims() if f".{file.parent.name}." in type(claim).__module__}
    assert set(tables) == beside
    for table in tables.values():
        assert set(table) <= set(Claim.__annotations__)


def plain_words(text):
    """A text without its formulas."""
    return re.sub(r"\$[^$]*\$", "", text)


def test_the_catalogue_is_complete_and_ordered():
    ids = [claim.id for claim in claims()]
    assert len(set(ids)) == len(ids)
    needed = "A-L1 A-S A-K3 A-F1a A-F1b A-F1c A-F2 A-F3 A-F4 A-F5 A-F67 A-F8 A-F9 A-L2 A-L4 A-L8 A-T1 A-T2 A-T3 A-T4 A-T8 X-O X-B X-T5"
    needed += " B-L2 B-I B-L7 B-L3 B-D2 B-T5 B-L6 B-L19 B-F2 B-F3 B-F14"
    needed += " D-1 D-2 D-3 E-1 F-1 X-N1 X-N2 X-N3 X-N4 X-N5 X-N6 X-N7 X-N8 X-N9 X-H"
    needed += " C-G C-L1 C-L2 C-L3 C-T1 C-T2 C-T2a C-T3 C-F3 C-F4 C-F5 C-F6 C-A C-H C-L C-O"
    assert set(needed.split()) <= set(ids)


def test_a_missing_or_nan_number_does_not_hold():
    claim, finding, *_ = quick_run("A-K3")
    broken = replace(finding, numbers=dict.fromkeys(finding.numbers, float("nan")))
    assert claim.judge(broken) is Verdict.DOES_NOT_HOLD
    assert claim.judge(replace(finding, assumption_met=False)) is Verdict.ASSUMPTION_NOT_MET


@pytest.mark.parametrize(
    ("stated", "verdict"),
    [
        ((), Verdict.HOLDS_AS_STATED),
        ((0.4, 0.5), Verdict.HOLDS_AS_STATED),
        ((0.4, 0.6), Verdict.HOLDS_IN_PART),
        ((0.6,), Verdict.DOES_NOT_HOLD),
        ((0.6, 0.7), Verdict.DOES_NOT_HOLD),
    ],
)
def test_holding_in_part_needs_a_stated_check_that_holds(stated, verdict):
    numbers = {"checked": 1.0} | {f"stated_{k}": 0.5 for k in range(len(stated))}
    as_stated = {f"stated_{k}": Bound(low=low) for k, low in enumerate(stated)}
    claim = changed(a_f9.A_F9(), expected={"checked": Bound(1.0, 1.0)}, as_stated=as_stated)
    assert claim.judge(Finding("", numbers)) is verdict
    assert claim.judge(Finding("", {**numbers, "checked": 0.0})) is Verdict.DOES_NOT_HOLD


def test_our_own_statement_holds_by_our_bounds_only():
    for claim_id, verdict in (("X-0", Verdict.HOLDS_BY_OUR_OWN_BOUNDS), ("C-0", Verdict.HOLDS_WITH_CAVEATS)):
        claim = changed(
            a_f9.A_F9(),
            id=claim_id,
            expected={"share": Bound(low=0.5)},
            as_stated={"a": Bound(low=1), "b": Bound(low=1)},
        )
        holds = {"share": 0.7, "a": 1.0, "b": 1.0}
        assert claim.judge(Finding("", holds, note="A note.")) is verdict
        assert claim.judge(Finding("", {**holds, "a": 0.9}, note="A note.")) is Verdict.HOLDS_IN_PART
        assert claim.judge(Finding("", {**holds, "share": 0.4}, note="A note.")) is Verdict.DOES_NOT_HOLD
    ours = {claim.id for claim in claims() if claim.is_ours}
    assert ours == {claim.id for claim in claims() if claim.id[:2] == "X-"} | {"C-O", "C-H"}


def test_archived_numbers_alone_cannot_carry_a_verdict():
    claim = changed(a_f9.A_F9(), expected={"stored": Bound(low=1.0)}, as_stated={"new": Bound(low=1.0)})
    for new, verdict in ((1.0, Verdict.HOLDS_AS_STATED), (0.0, Verdict.DOES_NOT_HOLD)):
        assert claim.judge(Finding("", {"stored": 1.0, "new": new}, archived=("stored",))) is verdict
    assert claim.judge(Finding("", {"stored": 0.0, "new": 1.0}, archived=("stored",))) is Verdict.DOES_NOT_HOLD
    both = Finding("", {"stored": 1.0, "new": 1.0}, archived=("stored", "new"))
    assert claim.judge(both) is Verdict.HOLDS_IN_PART


# ---- single numbers and the verdict they lead to


def _inside(bound):
    """A number that a bound allows."""
    if np.isfinite(bound.low) and np.isfinite(bound.high):
        return 0.5 * (bound.low + bound.high)
    return bound.low if np.isfinite(bound.low) else bound.high


@pytest.mark.parametrize(
    ("claim_id", "number", "value", "verdict"),
    [
        ("A-F9", "mean_corr_with_negative_gap", 0.985, Verdict.HOLDS_IN_PART),  # however high the median is
        ("A-F9", "mean_corr_with_negative_gap", 0.991, Verdict.HOLDS_AS_STATED),
        ("A-F9", "mean_corr_textbook_1e-12", 0.994, Verdict.HOLDS_IN_PART),
        ("A-F9", "share_of_negative_gaps", 0.011, Verdict.DOES_NOT_HOLD),
        ("A-F9", "saturated_share_d2", 0.45, Verdict.DOES_NOT_HOLD),
        ("C-F6", "code_local_distance_by_label", 0.0951, Verdict.HOLDS_IN_PART),
        ("C-F6", "local_distance_by_label", 0.0949, Verdict.HOLDS_AS_STATED),
        ("D-1", "mean_corr_factors_last", 0.984, Verdict.HOLDS_IN_PART),
        ("D-1", "mean_corr_factors_last", 0.986, Verdict.HOLDS_AS_STATED),
        ("X-N2", "own_share_ℓ∞", 0.994, Verdict.HOLDS_IN_PART),
        ("X-N3", "least_median_alignment", 0.94, Verdict.HOLDS_IN_PART),
        ("X-N3", "least_median_alignment", 0.79, Verdict.DOES_NOT_HOLD),
    ],
)
def test_a_number_decides_by_its_bound(claim_id, number, value, verdict):
    named = claim(claim_id)
    numbers = {name: _inside(bound) for name, bound in {**named.expected, **named.as_stated}.items()}
    whole = Verdict.HOLDS_BY_OUR_OWN_BOUNDS if named.is_ours else Verdict.HOLDS_AS_STATED
    assert named.judge(Finding("", numbers)) is whole
    assert named.judge(Finding("", {**numbers, number: value})) is verdict


# ---- a fault in what a claim measures must turn its verdict


def _ten_times_too_small(old):
    def broken(*args):
        found = old(*args)
        return replace(found, L_p=0.1 * np.asarray(found.L_p))

    return broken


def _bound_twice_too_large(old):
    def broken(*args):
        found = old(*args)
        return found._replace(log_bound=np.asarray(found.log_bound) + np.log(2.0))

    return broken


def _climbs(old):
    def broken(data, v, **options):
        return old(data, -np.asarray(v), **options)

    return broken


def _third_is_nan(old):
    count = iter(range(1000))
    return lambda *args: float("nan") if next(count) == 2 else old(*args)


def _without_products_of_embeddings_and_p(old):
    def broken(start, delta):
        products, norms = old(start, delta)
        return products._replace(value=float(np.abs(np.append(start.E, [start.p], axis=0) @ start.v).max())), norms

    return broken


def _every_lead_is_positive(old):
    def broken(*args, required=None):
        return old(*args) if required is None else SimpleNamespace(margin_lead=lambda selection: 0.5)

    return broken


FAULTS = {
    "a constant ten times too small": ("A-S", a_s, "smoothness", _ten_times_too_small),
    "a bound twice too large": ("A-K3", a_k3, "key_inequality", _bound_twice_too_large),
    "descent that stays where it starts": (
        "A-F8",
        a_f8,
        "_ends",
        lambda old: lambda data, v, found, far: SimpleNamespace(final=found.direction, selected=found.selected),
    ),
    "steps of a constant length": ("A-T2", ml, "GradientDescent", lambda old: NormalizedGD),
    "descent that climbs": ("A-T3", ml, "descend", _climbs),
    "one comparison that is nan": ("A-K3", a_k3, "_against_definition", _third_is_nan),
    "ratios that are nothing": ("A-L4", a_l4, "gradient_ratio", lambda old: lambda *args: 0.0 * old(*args)),
    "bounds that hold anywhere": (
        "A-L4",
        a_l4,
        "local_gradient_bounds",
        lambda old: lambda data, v, cone, p: SimpleNamespace(hold=np.ones(len(p), dtype=bool)),
    ),
    "inner products left out": ("B-I", b_i, "initial_concentration", _without_products_of_embeddings_and_p),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_measurement_does_not_hold(monkeypatch, name):
    claim_id, module, attribute, broken = FAULTS[name]
    monkeypatch.setattr(module, attribute, broken(getattr(module, attribute)))
    found = claim(claim_id)
    assert found.judge(found.compute(Effort.QUICK, Progress())) is Verdict.DOES_NOT_HOLD


# ---- a fault must break the bound that looks for it, also of claims that are known not to hold


def _stands_still(old):
    def broken(*args):
        run = old(*args)
        return run | {"cosine": np.full_like(run["cosine"], 0.97)}

    return broken


def _in_one_norm(old):
    return lambda norm, size: old(ml.L2(), size)


def _without_the_first(old):
    def broken(*args):
        ends = old(*args)
        return np.where(ends == 0, -1, ends)

    return broken


def _opposite(old):
    def broken(*args):
        judged = old(*args)
        return None if judged is None else judged | {"certified": not judged["certified"]}

    return broken


def _a_thousandth_too_long(old):
    def broken(*args, **options):
        x, residual = old(*args, **options)
        return x * np.linspace(1.0, 1.001, len(x)), residual

    return broken


def _losses_exchanged(old):
    def broken(radii):
        first, second = old(radii).values()
        return dict(zip(old(radii), (second, first), strict=True))

    return broken


BROKEN_BOUNDS = {
    "a direction that stands still": ("G-T2", g_t2, "_follow", _stands_still, {"largest_share_of_the_lack_that_stays"}),
    "descents that are all in one norm": (
        "X-N4",
        ml,
        "SteepestDescent",
        _in_one_norm,
        {"largest_difference_W", "largest_difference_p", "smallest_excess_over_the_control"},
    ),
    "ends at one direction that are not recognised": (
        "X-B",
        x_b,
        "_ends",
        _without_the_first,
        {"share_accounted_figure_1b", "share_accounted_random"},
    ),
    "a minimum that nothing fences in": (
        "X-B",
        x_b,
        "_fence",
        lambda old: lambda *args: None,
        {"share_accounted_random"},
    ),
    "steps that do not fall": ("X-N3", x_n3, "POWER", lambda old: 0.0, {"least_median_alignment"}),
    "memories that outlast the fall of gradients": (
        "X-N7",
        x_n7,
        "RATE",
        lambda old: 5.0 * x_n7.FAST_RATE,
        {"smallest_share_with_momentum"},
    ),
    "leads that are not measured": (
        "B-L19",
        b_l6,
        "feasible_selections",
        _every_lead_is_positive,
        {"largest_difference_of_leads"},
    ),
    "a closed form that is accepted when it is wrong": (
        "B-D2",
        b_l6,
        "_remarks",
        _opposite,
        {"closed_form_misjudged"},
    ),
    "a second solver that is a little off": (
        "B-L3",
        b_l6,
        "nnls",
        _a_thousandth_too_long,
        {"largest_distance_to_nnls"},
    ),
    "ties along which the flow does move": (
        "B-L6",
        b_l6,
        "all_selecting_directions",
        lambda old: lambda E, data: E[:1],
        {"largest_drift_where_all_tie"},
    ),
    "two losses that are exchanged": ("C-T2a", c_t2, "_best_of_the_plane", _losses_exchanged, {"corr_of_the_log_loss"}),
}


@pytest.mark.parametrize("name", BROKEN_BOUNDS)
def test_a_fault_breaks_its_bound(monkeypatch, name):
    claim_id, module, attribute, broken, names = BROKEN_BOUNDS[name]
    found = claim(claim_id)
    bounds = {**found.as_stated, **found.expected}
    sound = quick_run(claim_id).finding.numbers
    assert names <= {checked for checked, bound in bounds.items() if bound.holds(sound[checked])}
    monkeypatch.setattr(module, attribute, broken(getattr(module, attribute)))
    numbers = found.compute(Effort.QUICK, Progress()).numbers
    assert names <= {checked for checked, bound in bounds.items() if not bound.holds(numbers[checked])}


def test_problems_that_agree_everywhere_satisfy_the_proofs_remarks(monkeypatch):
    """The two bounds of B-D2 that are known to fail are met by what they ask for."""
    monkeypatch.setattr(b_l6, "untied_vocabulary_svm", ml.vocabulary_svm)
    found = claim("B-D2")
    finding = found.compute(Effort.QUICK, Progress())
    assert found.judge(finding) is Verdict.HOLDS_IN_PART
    assert found.as_stated["eq_18_differs_with_ties"].holds(finding.numbers["eq_18_differs_with_ties"])
