"""The pages of a probe and of curves over checkpoints: they hold the numbers, and their sentences follow these."""

import base64
import dataclasses
import itertools
import json
import re
from collections import Counter
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from made_up_probe import EVIL, HEADS, LAYERS, N_CHECKPOINTS, STEPS, made_up_curves, made_up_result, preference_graph
from marginlens.probe import CheckpointCurves, probe_page
from marginlens.probe.heads.preferences import MAX_GRAPH_TOKENS
from marginlens.probe.page import checkpoint_page, graph_drawing, page_data
from marginlens.probe.page.sentences import (
    answers,
    change,
    findings,
    has_trend,
    main_result,
    training_findings,
)
from marginlens.probe.result import HEAD_KINDS, MEASURES, Example, MarginCounts, TokenShare


def embedded(page):
    (text,) = re.findall(r'<script type="application/json" id="probe">(.*?)</script>', page, flags=re.S)
    return json.loads(text, parse_constant=pytest.fail)


def test_the_page_has_the_kind_of_every_head_and_at_most_twelve_numbers():
    result = made_up_result()
    page = probe_page(result)
    data = embedded(page)
    assert data["kinds"] == result.kinds.tolist()
    assert page.index(main_result(result)) < page.index('id="heat"') < page.index("<h2>What one sees</h2>")
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
    sparsity, layers, weights, selections, preferences, correlation, _ = found
    assert "The sparsest head is L0H0 with nnz/T 0.10, the most even one L2H3 with 0.90." in sparsity
    assert layers.endswith("is 0.21, 0.50, 0.79.")
    assert "is −1.000: heads with larger key-query weights are on the whole sparser." in weights
    kinds = Counter(made_up_result(heads).kinds.ravel().tolist())
    assert f"{kinds['even']} even heads" in selections
    assert sum(int(count) for count in re.findall(r"(\d+) \S+ heads?[,.]", selections)) == LAYERS * HEADS
    assert preferences.startswith(f"A head decides {made_up_result()['contested_share'].mean():.0%} of the pairs")
    assert "median 0.500 over heads (from 0.100 to 0.900)" in correlation
    assert "at the selections it makes itself is 0.500, which 6 of 12 heads exceed" in correlation
    assert "the typical head is about as max-margin as a random one." in correlation
    assert "that of L2H3, 0.900" in correlation
    main = main_result(made_up_result({**heads, "correlation_random_head": np.full((LAYERS, HEADS), 0.5)}))
    assert main.endswith("the typical head is about as max-margin as a random one (correlation 0.500 against 0.500).")
    assert "is more max-margin than a random one." in with_chance(0.3)[-2]
    assert "is less max-margin than a random one." in with_chance(0.7)[-2]
    at_offset = "W at offset 3 with the max-margin solution for the selections that this W makes has"
    assert at_offset in with_chance(0.7, w_offset=3)[-2]


def test_the_answers_follow_the_numbers():
    flat = np.linspace(0.1, 0.9, LAYERS * HEADS).reshape(LAYERS, HEADS)
    heads = {"negligible_share": flat, "negligible_share_at_0.1": flat**0.1, "sink_share": flat[::-1, ::-1]}
    known = {
        "sinks": (TokenShare("'.'", 0.4, 0.125),),
        "head_sinks": {(1, 2): TokenShare("'.'", 0.5, 0.1), (0, 1): TokenShare("the first token", 0.996, 0.25)},
    }
    sinks, sparsity = answers(made_up_result(heads, **known))
    assert sinks.sentence == "In 9 of 12 heads one token of an input gets 30% or more of all attention."
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
    for said in training_findings(curves)[:2]:
        assert "falls in 3 of 3 layers (the last layer: 0.9 → 0.3 (−1.00)" in said
        assert "the Frobenius norm of W grows in 3 (the last layer: 1 → 7 (1.00))." in said
        verdict = "So attention gets sparser while the key-query weights grow, as paper A's Figs 6 and 7 say"
        assert f"{verdict}: nnz/T falls by 67%, the norm grows by 600%." in said


def test_layers_that_disagree_are_listed():
    some = made_up_curves(relative_nnz=[DOWN, UP, DOWN], first_relative_nnz=UP, frobenius=[UP, UP, FLAT])
    mixed, none = training_findings(some)[:2]
    assert "falls in 2 of 3 layers" in mixed
    assert "grows in 2 (" in mixed
    assert "as paper A's Figs 6 and 7 say, in layer 0 only: nnz/T falls by 67%" in mixed
    assert (
        "So in no layer does attention get sparser while the key-query weights grow by more than chance explains"
        in none
    )
    assert has_trend(some, "relative_nnz", -1).tolist() == [True, False, True]
    assert has_trend(some, "frobenius", 1).tolist() == [True, True, False]


def test_a_trend_needs_more_than_two_end_points():
    curve = [0.5, 0.9, 1.0, 0.95, 0.97, 0.8, 0.4]  # ends below its first value, with a rank correlation near 0
    assert not has_trend(made_up_curves(relative_nnz=curve), "relative_nnz", -1).any()
    rising = made_up_curves(relative_nnz=[0.5, 0.4, 0.3, 0.2, 0.25, 0.3, 0.6])
    assert not has_trend(rising, "relative_nnz", 1).any()


@pytest.mark.parametrize("n", [2, 4, 5])
def test_few_checkpoints_give_no_trend(n):
    whole = made_up_curves(relative_nnz=DOWN, frobenius=UP)
    measures = {name: values[:n] for name, values in whole.measures.items()}
    few = CheckpointCurves("bert", whole.names[:n], STEPS[:n], measures, 5)
    said = training_findings(few)[0]
    assert f"{n} checkpoints cannot say" in said
    assert "So attention gets sparser" not in said
    assert not has_trend(few, "relative_nnz", -1).any()
    if n == 5:
        page = checkpoint_page(few)
        assert "(−1.00)" not in page
        assert "rank correlation" not in page


def test_unrelated_models_called_checkpoints_show_a_trend_as_rarely_as_stated():
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        measures = {"relative_nnz": rng.random((8, 4, 2)), "frobenius": 1.0 + rng.random((8, 4, 2))}
        curves = CheckpointCurves("bert", tuple("abcdefgh"), np.arange(8.0), measures, 5)
        found += bool(any(has_trend(curves, "relative_nnz", sign).any() for sign in (-1, 1)))
    assert found <= 11  # 5 expected at the stated 5%; more than 11 has a chance below 1%


def test_the_max_margin_part_is_compared_with_random_heads():
    curves = made_up_curves(
        correlation=0.2 + 0.1 * STEPS,
        correlation_random_head=np.full(N_CHECKPOINTS, 0.35),
    )
    correlation = training_findings(curves)[3]
    assert "the mean over the heads of the last layer, goes 0.2 → 0.8 (1.00)." in correlation
    assert "goes 0.35 → 0.35, and is exceeded at 5 of 7 checkpoints" in correlation
    unknown = made_up_curves(correlation=np.full(N_CHECKPOINTS, np.nan))
    assert "is known at no checkpoint in the last layer" in training_findings(unknown)[3]
    assert change(unknown, "correlation") == "–"
