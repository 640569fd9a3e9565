"""The pages of a probe and of curves over checkpoints: they hold the numbers, and their sentences follow these."""

import base64
import dataclasses
import itertools
import json
import re
import zlib
from collections import Counter
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from made_up_probe import EVIL, HEADS, LAYERS, N_CHECKPOINTS, STEPS, made_up_curves, made_up_result, preference_graph
from marginlens.probe import CheckpointCurves, probe_page
from marginlens.probe.findings import answers, findings, main_results, training_findings
from marginlens.probe.heads.preferences import MAX_GRAPH_TOKENS
from marginlens.probe.measures import HEAD_KINDS, MEASURES
from marginlens.probe.page import checkpoint_page, graph_drawing, page_data
from marginlens.probe.result import Example, MarginCounts, TokenShare
from marginlens.words import Fact, text


def embedded(page):
    (text,) = re.findall(r'<script type="application/json" id="probe">(.*?)</script>', page, flags=re.S)
    return json.loads(text, parse_constant=pytest.fail)


def test_the_page_has_the_kind_of_every_head_and_at_most_twelve_numbers():
    result = made_up_result()
    page = probe_page(result)
    data = embedded(page)
    assert data["kinds"] == result.kinds.tolist()
    assert (
        page.index(str(main_results(result)[0]))
        < page.index('id="heat"')
        < page.index("<h2>What the numbers show</h2>")
    )
    names = [one["name"] for one in data["measures"]]
    assert len(names) == 12
    assert {kind.measure for kind in HEAD_KINDS.values()} - {""} <= set(names)
    assert names == [one.name for one in MEASURES if one.name in names]
    for one in data["measures"]:
        assert np.allclose(one["values"], result[one["name"]], rtol=1e-5, atol=0.0)  # six digits
    assert data["preferences"] == {"1.2": [[EVIL, "two", 5, 1, 8]]}
    assert [name for *_, name in data["graphs"]["1.2"]["names"]] == ["two", EVIL[:15] + "…"]
    assert np.sum(data["margins"]["counts"]) == LAYERS * HEADS * 200


def test_one_layer_of_one_head_is_counted_in_the_singular():
    result = made_up_result(n_inputs=1, n_queries=1)
    single = {name: values[:1, :1] for name, values in result.measures.items()}
    facts = {"examples": (), "preferences": {}, "graphs": {}, "margins": MarginCounts.empty(1, 1)}
    page = probe_page(dataclasses.replace(result, measures=single, **facts))
    assert "1 layer of 1 head" in page
    assert "1 input, 1 query" in page


def test_images_are_shown_with_maps_and_their_scale():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
    attention = (rng.dirichlet(np.ones(13), size=(LAYERS, HEADS, 1)) * 0.01).astype(np.float32)
    tokens = ("[CLS]", *(f"{k // 4},{k % 4}" for k in range(12)))
    chosen = attention.argmax(axis=-1)
    example = Example("image 0", tokens, np.arange(1), attention, chosen, rng.random((LAYERS, HEADS, 1)), (3, 4), image)
    (plain,) = page_data(made_up_result(examples=(example,)))["examples"]
    levels = np.frombuffer(base64.b64decode(plain["maps"]), dtype=np.uint8).reshape(attention.shape)
    peaks = np.array(plain["peaks"])[..., None, None]
    assert (levels.max(axis=-1) == 255).all()
    assert np.abs(levels / 255.0 * peaks - attention).max() <= 0.51 / 255.0 * attention.max()  # peaks have six digits
    start, png = plain["image"].split(",")
    assert start == "data:image/png;base64"
    assert np.array_equal(Image.open(BytesIO(base64.b64decode(png))), image)
    grey = dataclasses.replace(example, image=image[..., :1])
    png = page_data(made_up_result(examples=(grey,)))["examples"][0]["image"].split(",")[1]
    assert np.array_equal(Image.open(BytesIO(base64.b64decode(png))), image[..., 0])
    assert page_data(made_up_result())["examples"][0]["image"] is None


def test_missing_numbers_are_omitted_or_null():
    result = made_up_result()
    frobenius = result["frobenius"].copy()
    frobenius[0, 1] = np.nan
    changes = {"frobenius": frobenius, "first_nnz": np.full((LAYERS, HEADS), np.nan)}
    data = embedded(probe_page(made_up_result(changes, max_margin=False, seconds=float("nan"))))
    shown = {one["name"]: one["values"] for one in data["measures"]}
    assert shown["frobenius"][0][1] is None
    assert "first_nnz" not in shown
    assert "correlation" not in shown


def test_the_sentences_follow_the_numbers():
    flat = np.linspace(0.1, 0.9, LAYERS * HEADS).reshape(LAYERS, HEADS)
    heads = {"relative_nnz": flat, "frobenius": 10.0 - flat, "first_share": np.where(flat > 0.5, 0.8, 0.2)}
    heads["correlation"] = flat

    def with_chance(level, **changes):
        chance = np.full((LAYERS, HEADS), level)
        return findings(made_up_result({**heads, "correlation_random_head": chance}, **changes))

    found = with_chance(0.5)
    assert [finding.code for finding in found] == [
        "probe.sparsity",
        "probe.layer_sparsity",
        "probe.norms_and_sparsity",
        "probe.selections",
        "probe.ties",
        "probe.preferences",
        "probe.correlation",
        "probe.margins",
    ]
    sparsity, layers, weights, selections, _, preferences, correlation, _ = (finding.numbers for finding in found)
    assert (sparsity["sparsest"], sparsity["evenest"], sparsity["case"]) == ("L0H0", "L2H3", "different")
    assert (sparsity["low"], sparsity["high"]) == (flat.min(), flat.max())
    assert [layer.numbers["mean"] for layer in layers["layers"]] == pytest.approx(flat.mean(axis=1), rel=1e-12, abs=0.0)
    assert (weights["rank"], weights["case"]) == (pytest.approx(-1.0, rel=1e-12, abs=0.0), "sparser")
    assert selections["decisive"] == pytest.approx(made_up_result()["decisive_share"].mean(), rel=1e-12, abs=0.0)
    contested = made_up_result()["contested_share"].mean()
    assert preferences["contested"] == pytest.approx(contested, rel=1e-12, abs=0.0)
    expected = {"median": 0.5, "low": 0.1, "high": 0.9, "random": 0.5, "largest": 0.9}
    assert {name: correlation[name] for name in expected} == pytest.approx(expected, rel=1e-12, abs=0.0)
    assert (correlation["n_above"], correlation["n_known"], correlation["head"]) == (6, 12, "L2H3")
    compared = [with_chance(level)[-2].numbers["compared"].code for level in (0.3, 0.5, 0.7)]
    assert compared == ["compared.more", "compared.about_as", "compared.less"]
    at_offset = with_chance(0.7, w_offset=3)[-2].numbers
    assert (at_offset["case"], at_offset["offset"]) == ("at_offset", 3)


def closeness(values, **changes):
    """The headline of heads with these correlations; the other heads have none."""
    own = np.full((LAYERS, HEADS), np.nan)
    own.flat[: len(values)] = values
    heads = {"correlation": own, "correlation_random_head": np.full((LAYERS, HEADS), 0.1)}
    return main_results(made_up_result(heads, **changes))[0]


@pytest.mark.parametrize(
    ("values", "case", "n_close"),
    [
        (np.linspace(0.05, 0.229, LAYERS * HEADS), "none", 0),
        (np.linspace(0.05, 0.9, LAYERS * HEADS), "several_near", 6),
        ([0.1, 0.5], "one_near", 1),
        ([0.1, 0.49], "none_of_known", 0),
        ([-0.2], "only", 0),
    ],
)
def test_the_headline_says_how_near_heads_are_to_their_max_margin_directions(values, case, n_close):
    found = closeness(values)
    assert (found.code, found.numbers["case"]) == ("probe.near_max_margin", case)
    assert (found.numbers["n_close"], found.numbers["n_known"]) == (n_close, len(values))
    assert found.numbers["largest"] == max(values)
    best = int(np.argmax(values))
    assert found.numbers["head"] == f"L{best // HEADS}H{best % HEADS}"
    assert found.numbers["random"] == 0.1


def test_the_headline_names_the_offset_of_w_and_else_what_heads_select():
    at_offset = closeness([0.1], w_offset=0)
    assert (at_offset.code, at_offset.numbers["offset"]) == ("probe.at_offset", 0)
    for result in (made_up_result(max_margin=False), made_up_result({"correlation": np.full((LAYERS, HEADS), np.nan)})):
        (kinds,) = main_results(result)
        counts = Counter(result.kinds.ravel().tolist())
        assert kinds.code == "probe.head_kinds"
        assert {kind.code.split(".")[1]: kind.numbers["count"] for kind in kinds.numbers["kinds"]} == counts


def test_the_headline_is_printed_on_the_page_and_in_a_notebook():
    result = made_up_result()
    assert str(result).splitlines() == [*map(str, main_results(result)), repr(result)]
    shown = result._repr_html_()
    assert shown.count("<td title=") == LAYERS * HEADS + len(
        set(result.kinds.ravel()) | set(result.kinds_beside.ravel()) - {"", "content"}
    )
    for sentence in main_results(result):
        assert str(sentence) in shown
        assert str(sentence) in probe_page(result)


def test_the_lab_is_told_first_that_scores_are_assumed():
    (example,) = page_data(made_up_result(), lab="lab.html")["examples"]
    _, _, address = example["planes"]["1.2"]
    packed = address.partition("#1.")[2]
    state = json.loads(zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), -zlib.MAX_WBITS))
    assert state["note"] == text("probe_lab.assumed_scores", selected="two", query=EVIL)
    assert state["problem"]["words"] == [["two", "[CLS]", "[SEP]"]]


def test_the_answers_follow_the_numbers():
    flat = np.linspace(0.1, 0.9, LAYERS * HEADS).reshape(LAYERS, HEADS)
    heads = {"negligible_share": flat, "negligible_share_at_0.1": flat**0.1, "sink_share": flat[::-1, ::-1]}
    known = {
        "sinks": (TokenShare("'.'", 0.4, 0.125),),
        "head_sinks": {(1, 2): TokenShare("'.'", 0.5, 0.1), (0, 1): TokenShare("the first token", 0.996, 0.25)},
    }
    sinks, sparsity = answers(made_up_result(heads, **known))
    assert sinks.answer == Fact("answer.sinks", {"n_sinks": 9, "n_heads": 12, "limit": 0.3})
    assert sinks.rows == (("'.'", "40%", "12%"),)
    assert [head[::2] for head in sinks.heads] == [("L0H1", "the first token, 99.6%"), ("L1H2", "'.', 50%")]
    assert sparsity.rows[0] == ("0.001", "50%", "10% to 90%", "6 of 12")
    assert sparsity.rows[2][2:] == (f"{0.1**0.1:.0%} to {0.9**0.1:.0%}", "12 of 12")
    assert sparsity.heads[0] == ("L2H3", "#L2H3", "90%")
    towers = {**known, "layer_names": ("encoder 0", "decoder 0", "cross 0")}
    assert answers(made_up_result(heads, **towers))[1].heads[0] == ("cross 0 H3", "#L2H3", "90%")


LETTER, HIGH = 7.3, 14.0  # pixels that a letter of the page's 12-pixel monospace takes, and the height of a name


def overlapping(drawing):
    rooms = [(x, y, LETTER * len(name), name) for x, y, name in drawing["names"]]
    return [
        (a[3], b[3])
        for a, b in itertools.combinations(rooms, 2)
        if abs(a[0] - b[0]) < 0.5 * (a[2] + b[2]) and abs(a[1] - b[1]) < HIGH
    ]


@pytest.mark.parametrize("seed", range(15))  # all densities with all strides
def test_names_do_not_overlap_or_leave_the_chart(seed):
    rng = np.random.default_rng(seed)
    names = ["w" * length + str(k) for k, length in enumerate(rng.integers(1, 20, size=MAX_GRAPH_TOKENS).tolist())]
    edges = [
        (i, j)
        for i, j in itertools.permutations(range(MAX_GRAPH_TOKENS), 2)
        if rng.random() < 0.04 * (1 + seed % 5) or j == i + 1
    ][:: 1 + seed % 3]
    drawing = graph_drawing(preference_graph(names, edges))
    assert overlapping(drawing) == []
    width, height = drawing["size"]
    for x, y, name in drawing["names"]:
        assert 0.5 * LETTER * len(name) <= x <= width - 0.5 * LETTER * len(name)
        assert 0.5 * HIGH <= y <= height - 0.5 * HIGH
        assert len(name) <= 16
    assert all(points[-1] > points[1] for points in drawing["arrows"])  # what is preferred stands above
    assert not drawing["inner"] or any(kind == "equal" for *_, kind, _ in drawing["boxes"])  # arrows inside a cycle


DOWN, UP, FLAT = 0.9 - 0.1 * STEPS, 1.0 + STEPS, np.array([1.0, 3.0, 2.0, 3.0, 1.0, 2.0, 1.1])


def test_falling_sparsity_with_growing_norms_agrees_with_paper_a():
    curves = made_up_curves(relative_nnz=DOWN, first_relative_nnz=DOWN, frobenius=UP)
    for finding, case in zip(training_findings(curves)[:2], ("with_rule", "alone"), strict=True):
        assert (finding.code, finding.numbers["case"]) == ("curve.sparsity_and_norms", case)
        trend, verdict = finding.numbers["trend"].numbers, finding.numbers["verdict"].numbers
        assert (trend["n_falling"], trend["n_growing"], trend["n_layers"]) == (3, 3, 3)
        assert str(trend["change"]) == "0.9 → 0.3 (−1)"
        assert str(trend["norm_change"]) == "1 → 7 (1)"
        assert (verdict["case"], str(verdict["falls"]), str(verdict["grows"])) == ("all", "67%", "600%")


def test_layers_that_disagree_are_listed():
    some = made_up_curves(relative_nnz=[DOWN, UP, DOWN], first_relative_nnz=UP, frobenius=[UP, UP, FLAT])
    mixed, none = (finding.numbers for finding in training_findings(some)[:2])
    assert (mixed["trend"].numbers["n_falling"], mixed["trend"].numbers["n_growing"]) == (2, 2)
    assert (mixed["verdict"].numbers["case"], mixed["verdict"].numbers["layers"]) == ("some", ["layer 0"])
    assert none["verdict"].numbers["case"] == "none"
    assert some.has_trend("relative_nnz", -1).tolist() == [True, False, True]
    assert some.has_trend("frobenius", 1).tolist() == [True, True, False]


def test_a_trend_needs_more_than_two_end_points():
    curve = [0.5, 0.9, 1.0, 0.95, 0.97, 0.8, 0.4]  # ends below its first value, with a rank correlation near 0
    assert not made_up_curves(relative_nnz=curve).has_trend("relative_nnz", -1).any()
    rising = made_up_curves(relative_nnz=[0.5, 0.4, 0.3, 0.2, 0.25, 0.3, 0.6])
    assert not rising.has_trend("relative_nnz", 1).any()


@pytest.mark.parametrize("n", [2, 4, 5])
def test_few_checkpoints_give_no_trend(n):
    whole = made_up_curves(relative_nnz=DOWN, frobenius=UP)
    measures = {name: values[:n] for name, values in whole.measures.items()}
    few = CheckpointCurves("bert", whole.names[:n], STEPS[:n], measures, 5)
    finding = training_findings(few)[0]
    assert (finding.code, finding.numbers["n_checkpoints"]) == ("curve.too_few_checkpoints", n)
    assert finding.numbers["change"].numbers["case"] == "plain"
    assert not few.has_trend("relative_nnz", -1).any()
    if n == 5:
        page = checkpoint_page(few)
        assert "(−1)" not in page
        assert "rank correlation" not in page


def test_unrelated_models_called_checkpoints_show_a_trend_as_rarely_as_stated():
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        measures = {"relative_nnz": rng.random((8, 4, 2)), "frobenius": 1.0 + rng.random((8, 4, 2))}
        curves = CheckpointCurves("bert", tuple("abcdefgh"), np.arange(8.0), measures, 5)
        found += bool(any(curves.has_trend("relative_nnz", sign).any() for sign in (-1, 1)))
    assert found <= 11  # 5 expected at the stated 5%; more than 11 has a chance below 1%


def test_the_max_margin_part_is_compared_with_random_heads():
    curves = made_up_curves(
        correlation=0.2 + 0.1 * STEPS,
        correlation_random_head=np.full(N_CHECKPOINTS, 0.35),
    )
    numbers = training_findings(curves)[3].numbers
    assert (numbers["quantity"].code, numbers["case"]) == ("curve_quantity.correlation", "known")
    ends = (numbers["change"].numbers["first"], numbers["change"].numbers["last"], numbers["first"], numbers["last"])
    assert ends == pytest.approx((0.2, 0.8, 0.35, 0.35), rel=1e-9, abs=0.0)
    assert (numbers["n_above"], numbers["n_known"]) == (5, 7)
    unknown = made_up_curves(correlation=np.full(N_CHECKPOINTS, np.nan))
    assert training_findings(unknown)[3].numbers["case"] == "unknown"
    assert unknown.change("correlation").numbers["case"] == "none"
