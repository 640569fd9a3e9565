"""Queries whose largest logit several tokens share: they select none of them, and what is counted and solved says so."""

import base64
import dataclasses

import numpy as np
import pytest

from marginlens.cli.probe_work import show
from marginlens.errors import InputError
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin import head_margin, layer_margins, selected_tokens, selection_constraints
from marginlens.probe.heads.max_margin_sample import SAME, MaxMarginSettings, sample_queries
from marginlens.probe.heads.selection import select_tokens
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.reading import read_attention
from marginlens.probe.pages.findings import findings
from marginlens.probe.pages.page import page_data
from marginlens.probe.run import probe_model
from marginlens.probe.run_margins import agreement, model_selections
from marginlens.probe.settings import ProbeSettings
from marginlens.svm.solution import Status
from tiny_transformers import TEXTS, encoded, tiny_bert, tiny_llama

torch = pytest.importorskip("torch")
JUST = 1e-6  # by which a bracket is above or below its bound, relative to it
EVERYONE = MaxMarginSettings(queries_per_input=10)


def silent(model, layer=0, name="key"):
    """The model with the first head of a layer without queries or keys, so that all its logits are equal."""
    module = getattr(adapter_for(model).attention_module(layer), name)
    with torch.no_grad():
        module.weight[: adapter_for(model).d_head] = 0.0
        if module.bias is not None:
            module.bias[: adapter_for(model).d_head] = 0.0
    return model


@pytest.fixture(scope="module")
def found():
    model = silent(tiny_bert())
    return probe_model(model, encoded(model), ProbeSettings(max_margin=True, queries=2))


# ---- selections


def test_logits_within_rounding_are_tied_and_just_beyond_are_not():
    logits = np.array([[1.0, 3.0, 3.0 - 1e-3], [3.0, 3.0, 2.9], [0.0, 5.0, -np.inf]])
    for rounding, n_tied in ((0.0, [1, 2, 1]), (1e-3 * (1 - JUST), [1, 2, 1]), (1e-3 * (1 + JUST), [2, 2, 1])):
        chosen = select_tokens(logits, rounding=rounding)
        assert chosen.n_tied.tolist() == n_tied
        assert chosen.sole.tolist() == [
            one if count == 1 else -1 for one, count in zip(chosen.selected, n_tied, strict=True)
        ]
    each = select_tokens(logits, rounding=[1.0, 0.0, 6.0])
    assert each.n_tied.tolist() == [2, 2, 2]
    assert each.margin.tolist() == select_tokens(logits).margin.tolist()
    assert select_tokens([[-np.inf, -np.inf]], rounding=1.0).sole.tolist() == [-1]


def test_rounding_must_fit_the_queries():
    with pytest.raises(InputError, match=r"'rounding' argument must be one number, or numbers of shape \(2,\)"):
        select_tokens(np.zeros((2, 3)), rounding=np.zeros(3))
    with pytest.raises(InputError, match="'rounding' argument must be numbers of at least zero; got -1"):
        select_tokens(np.zeros((2, 3)), rounding=-1.0)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 0.2), ("float32", 1e-3)])
def test_where_rounding_changes_a_selection_it_is_said_to_be_tied(dtype, most):
    model = tiny_bert(sharpness=2.0).to(getattr(torch, dtype))
    texts = [" ".join(np.random.default_rng(k).permutation(TEXTS[4].split())) for k in range(150)]
    changed, n_tied, n = 0, 0, 0
    for batch in encoded(model, texts).batches():
        for reading in read_attention(model, batch.inputs):
            X = reading.inputs.double().numpy()
            for head in range(2):
                map_ = adapter_for(model).key_query(reading.layer, head)
                exact = (X @ (map_.matrix @ X.transpose(0, 2, 1) + map_.bias_column[:, None])).transpose(0, 2, 1)
                rounding = reading.rounding[:, head].double().numpy()
                chosen = select_tokens(reading.logits[:, head].double().numpy(), rounding=rounding)
                differs = chosen.selected != exact.argmax(axis=-1)
                assert (chosen.n_tied[differs] > 1).all()
                changed, n_tied, n = changed + differs.sum(), n_tied + (chosen.n_tied > 1).sum(), n + differs.size
    assert n_tied <= most * n
    assert changed > 0 or dtype == "float32"


# ---- a whole probe


def test_a_head_with_equal_logits_selects_nothing(found):
    heads = found.heads
    assert heads.tied_share[0, 0] == 1.0
    assert heads.tied_share.ravel()[1:].tolist() == [0.0, 0.0, 0.0]
    for name in ("self_share", "first_share", "last_share", "decisive_share", "margin_median", "margin_low"):
        assert found.measure(name)[0, 0] == 0.0, name
    assert heads.relative_nnz[0, 0] == pytest.approx(1.0)
    assert (0, 0) not in found.graphs
    assert found.preferences[0, 0] == ()
    assert np.isnan(heads.contested_share[0, 0])
    assert (found.examples[0].selected[0, 0] == -1).all()
    assert (found.examples[0].margins[0, 0] == 0.0).all()
    assert (found.examples[0].selected[0, 1] >= 0).all()


def test_the_other_heads_have_the_numbers_that_they_have_without_ties(found):
    model = tiny_bert()
    usual = probe_model(model, encoded(model), ProbeSettings(max_margin=True, queries=2))
    assert not usual.heads.tied_share.any()
    assert (usual.max_margin.n_tied == 0.0).all()
    assert not any("tied" in note for note in (*usual.notes, *findings(usual)))
    for name in ("self_share", "first_share", "margin_median", "correlation", "margin_ratio", "contested_share"):
        assert found.measure(name)[0, 1] == usual.measure(name)[0, 1], name


def test_its_max_margin_part_is_left_out_with_a_count(found):
    margin = found.max_margin
    assert margin.n_tied[0, 0] > 0
    assert margin.n_constraints[0, 0] == 0
    for name in (
        "correlation",
        "margin_ratio",
        "low_ratio",
        "correlation_random_matrix",
        "margin_ratio_random_selections",
    ):
        assert np.isnan(found.measure(name)[0, 0]), name
    assert np.isfinite(margin.correlation.ravel()[1:]).all()
    assert "For 1 head there is no max-margin solution: all their queries are tied, and select nothing." in found.notes
    assert found.notes[-1] == (
        f"In 1 head some of these queries, {int(margin.n_tied[0, 0])} at most, are tied: different tokens share their largest logit, up "
        "to rounding, and they are left out."
    )


def test_table_page_and_sentences_say_so(found, capsys):
    from rich.console import Console

    assert found.to_json()["measures"]["tied_share"][0] == [1.0, 0.0]
    assert "tied_share" in [one["name"] for one in page_data(found)["measures"]]
    assert "In 1 of 4 heads some queries select nothing, being tied" in findings(found)[3]
    assert "most often in L0H0, in 100% of its queries." in findings(found)[3]
    show(Console(width=200), found, None)
    assert "tied" in capsys.readouterr().out.split("The sparsest heads")[0]
    model = tiny_bert()
    usual = probe_model(model, encoded(model))
    assert usual.to_json()["measures"]["tied_share"] == [[0.0, 0.0], [0.0, 0.0]]
    assert "tied_share" not in [one["name"] for one in page_data(usual)["measures"]]
    show(Console(width=200), usual, None)
    assert "tied" not in capsys.readouterr().out
    measures = {name: np.stack([values, values]) for name, values in found.heads}
    curves = CheckpointCurves("bert", ("a", "b"), np.arange(2.0), measures, 1)
    show(Console(width=200), curves, None)
    assert "tied" in capsys.readouterr().out.splitlines()[3]
    none = dataclasses.replace(curves, measures={**measures, "tied_share": np.zeros((2, 2, 2))})
    assert {one.name for one in curves.shown} - {one.name for one in none.shown} == {"tied_share"}


def test_maps_on_the_page_stay_those_of_the_head(found):
    example = page_data(found)["examples"][0]
    n = len(example["tokens"])
    levels = np.frombuffer(base64.b64decode(example["maps"]), dtype=np.uint8).reshape(2, 2, n, n)
    assert (levels[0, 0] == round(255 / n)).all()


# ---- the max-margin problem


def plane(seed=0):
    """Inputs of four tokens in the plane, of which the first two differ along the second axis only, and a head that sees the first only."""
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(4, 2)) for _ in range(5)]
    for X in inputs[:2]:
        X[0, 0] = X[1, 0] = 3.0 + rng.random()  # the largest
    return inputs, KeyQueryMap(np.array([[1.0], [0.0]]), np.array([[0.0], [0.0]]), np.array([1.0]), 1.0)


def test_different_tokens_of_one_logit_are_not_selected():
    inputs, head = plane()
    sample = sample_queries(inputs, settings=EVERYONE)
    selected = selected_tokens(sample, head)
    tied = sample.places[:, 0] < 2
    assert (selected[tied] == -1).all()
    assert (selected[~tied] >= 0).all()
    triples = selection_constraints(sample, selected)
    assert np.unique(triples[:, 0]).tolist() == np.flatnonzero(~tied).tolist()
    found = head_margin(sample, head, EVERYONE)
    assert found.n_tied == tied.sum()
    without = head_margin(sample_queries(inputs[2:], settings=EVERYONE), head, EVERYONE)
    assert without.n_tied == 0
    assert found.own.n_constraints == without.own.n_constraints
    for name in ("correlation", "margin_ratio", "low_ratio", "best_margin"):
        assert getattr(found.own, name) == pytest.approx(getattr(without.own, name), rel=1e-9), name
    assert found.own.margin_ratio > 0.0
    for one in (*found.random_selections, *found.random_head, *found.random_matrix):  # at the same queries
        assert one.n_constraints == found.own.n_constraints


def test_ties_of_one_head_change_no_other_and_not_their_baselines():
    inputs, head = plane()
    rng = np.random.default_rng(1)
    others = [KeyQueryMap(*rng.normal(size=(2, 2, 1)), rng.normal(size=1), 1.0) for _ in range(2)]
    sample = sample_queries(inputs, settings=EVERYONE)
    together = layer_margins(sample, [others[0], head, others[1]], EVERYONE)
    for one, alone in zip(together, (others[0], head, others[1]), strict=True):
        assert repr(head_margin(sample, alone, EVERYONE)) == repr(one)  # repr: nan is itself
    assert [one.n_tied > 0 for one in together] == [False, True, False]
    assert together[0].random_head == together[2].random_head != together[1].random_head


@pytest.mark.parametrize("rounding", [SAME, 1e-2])
def test_the_bound_of_a_tie_is_relative_to_query_and_key(rounding):
    inputs, head = plane(1)
    inputs = inputs[:1]
    longest = inputs[0][0, 0]
    for share, tied in ((1 - 1e-3, True), (1 + 1e-3, False)):
        inputs[0][1, 0] = longest * (1.0 - share * rounding)
        sample = sample_queries(inputs, settings=EVERYONE)
        for size in (1.0, 1e5):  # the length of queries and keys does not matter
            larger = KeyQueryMap(size * head.W_K, head.W_Q, size * head.b_Q, 1.0)
            assert (selected_tokens(sample, larger, rounding) == (-1 if tied else 0)).all()


def test_copies_of_the_selected_token_are_no_tie():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3, 4))
    sample = sample_queries([X[[0, 1, 0, 2, 1, 2]]], settings=EVERYONE)
    W_K, W_Q = rng.normal(size=(2, 4, 2))
    assert set(selected_tokens(sample, KeyQueryMap(W_K, W_Q, np.ones(2), 1.0)).tolist()) <= {0, 1, 3}


def test_a_head_all_of_whose_queries_are_tied_has_no_problem():
    inputs, head = plane(2)
    found = head_margin(sample_queries(inputs[:2], settings=EVERYONE), head)
    assert found.own.status is Status.TRIVIAL
    assert found.n_tied == 8
    numbers = (found.own.correlation, found.own.margin_ratio, found.own.low_ratio, found.own.best_margin)
    assert np.isnan(numbers).all()


def test_ties_count_neither_for_nor_against_w_at_an_offset():
    model = silent(tiny_llama(), layer=1, name="q_proj")
    inputs = encoded(model)
    asked = ProbeSettings(max_margin=True, offset=1)
    result = probe_model(model, inputs, asked)
    tokens = [np.random.default_rng(0).normal(size=(len(one), 3)) for one in inputs.ids]
    sample = sample_queries(tokens, [np.tri(len(one), dtype=bool) for one in inputs.ids])
    assert (model_selections(model, inputs, 1, sample)[0] == -1).all()
    assert (model_selections(model, inputs, 1, sample)[1:] >= 0).all()
    assert "from 0%" not in result.notes[-1]
    assert result.max_margin.n_tied[1, 0] > 0
    made, own = np.array([[-1, 2, 3], [1, 1, -1], [-1, -1, 5]]), np.array([[-1, 2, 4], [1, 2, 3], [4, -1, -1]])
    np.testing.assert_array_equal(agreement(made, own), [0.5, 0.5, np.nan])


def test_half_precision_is_a_tie_in_half_precision_only():
    """A gap that float16 cannot hold is no selection of a float16 model."""
    single, half = tiny_bert().float(), tiny_bert().half()
    texts = encoded(single, [" ".join(np.random.default_rng(k).permutation(TEXTS[4].split())) for k in range(40)])
    asked = ProbeSettings(max_margin=True, queries=4)
    assert probe_model(single, texts, asked).max_margin.n_tied.sum() == 0
    assert probe_model(half, texts, asked).max_margin.n_tied.sum() > 0
