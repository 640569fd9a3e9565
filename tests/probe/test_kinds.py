"""What kind of head a head is, by what its queries select, and its choice as a problem in the plane."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from made_up_probe import made_up_result
from marginlens.lab import permalink
from marginlens.probe import AttentionRule, LayerReading, ProbeSettings, probe_model
from marginlens.probe.accumulators import LayerNumbers, MeasureSums, TokenNames
from marginlens.probe.findings import main_results
from marginlens.probe.heads.plane import MAX_TOKENS, QueryPlane
from marginlens.probe.measures import BESIDE, HEAD_KINDS, NEGLIGIBLE
from marginlens.probe.page import lab_problem
from tiny_transformers import encoded, tiny_bert, tiny_llama
from tolerances import ROUNDING, SIX_DIGITS

CLS, SEP, DOT = 0, 1, 2
TEXTS = ([CLS, 10, 11, 12, 10, DOT, SEP], [CLS, 13, 14, 15, DOT, SEP])  # the second is padded by one
N_TOKENS = 7


def places(kind: str, ids: list[int]) -> list[int]:
    """The token that each query of a constructed head of this kind selects."""
    n = len(ids)
    return {
        "previous": [max(q - 1, 0) for q in range(n)],
        "next": [min(q + 1, n - 1) for q in range(n)],
        "first": [0] * n,
        "same": [max(t for t in range(n) if ids[t] == ids[q]) for q in range(n)],
        "separator": [n - 1 if q % 2 else n - 2 for q in range(n)],
        "content": [2] * n,
        "even": [0] * n,
    }[kind]


def constructed(kinds: list[str]) -> tuple[np.ndarray, np.ndarray, TokenNames]:
    """Attention (2, n_heads, 7, 7) of one head of each kind, what is visible, and the tokens."""
    attention = np.zeros((2, len(kinds), N_TOKENS, N_TOKENS))
    visible = np.zeros((2, N_TOKENS, N_TOKENS), dtype=bool)
    ids = np.full((2, N_TOKENS), -1)
    for row, text in enumerate(TEXTS):
        n = len(text)
        ids[row, :n], visible[row, :n, :n] = text, True
        for head, kind in enumerate(kinds):
            sharpness = 0.1 if kind == "even" else 0.9  # an even head selects too, by a little
            attention[row, head, :n, :n] = (1.0 - sharpness) / n
            attention[row, head, np.arange(n), places(kind, text)] += sharpness
    return attention, visible, TokenNames(ids, np.isin(ids, [CLS, SEP, DOT]))


def reading_of(attention: np.ndarray, visible: np.ndarray) -> LayerReading:
    """A layer with given maps: its logits are their logarithms."""
    maps, sees = torch.from_numpy(attention), torch.from_numpy(visible)
    nothing = torch.zeros((*maps.shape[:3], 1), dtype=maps.dtype)
    rule = AttentionRule(scale=1.0, bias=maps.log().clamp(min=-1e4), mask=sees[:, None])
    return LayerReading(0, None, nothing, nothing, rule, sees.any(dim=-1), torch.zeros(maps.shape[:3]), None)


def measured(kinds: list[str], names: bool = True) -> dict[str, np.ndarray]:
    attention, visible, tokens = constructed(kinds)
    sums = MeasureSums(1, len(kinds))
    known = tokens if names else None
    sums.add(LayerNumbers(reading_of(attention, visible), tuple(NEGLIGIBLE), known), known)
    return sums.measures()


def hidden_behind(sink: str, kinds: list[str]) -> tuple[np.ndarray, np.ndarray, TokenNames]:
    """Attention of heads that give nine tenths to a sink, and the rest as heads of these kinds do."""
    attention, visible, tokens = constructed(kinds)
    sinks, _, _ = constructed([sink])
    return 0.9 * sinks + 0.1 * attention, visible, tokens


def test_a_constructed_head_of_each_kind_is_recognized():
    kinds = list(HEAD_KINDS)
    numbers = measured(kinds)
    for head, (name, kind) in enumerate(HEAD_KINDS.items()):
        if kind.measure:
            others = np.delete(numbers[kind.measure][0], [head, kinds.index("even")])
            assert numbers[kind.measure][0, head] == 1.0, name
            assert others.max() <= 0.5, name
    result = dataclasses.replace(made_up_result(), measures=numbers)
    assert result.kinds.tolist() == [kinds]
    assert result.to_dict()["kinds"] == [kinds]
    (sentence,) = main_results(result)
    assert [(kind.code, kind.numbers["count"]) for kind in sentence.numbers["kinds"]] == [
        (f"head_kind_count.{kind}", 1) for kind in kinds
    ]


def test_tokens_of_one_name_and_separators_are_counted_in_all_texts():
    numbers = measured(["previous", "content"])
    same = np.mean([text[2] == text[q] for text in TEXTS for q in range(len(text))])
    assert numbers["same_share"][0, 1] == pytest.approx(same, rel=SIX_DIGITS, abs=ROUNDING)
    assert numbers["separator_share"][0].tolist() == pytest.approx(
        [2 / 13, 0.0], rel=SIX_DIGITS, abs=ROUNDING
    )  # [SEP] selects the point in both texts


@pytest.mark.parametrize("sink", ["first", "separator"])
def test_a_head_behind_a_sink_is_recognized_beside_it(sink):
    kinds = ["previous", "next", "same", "content"]
    attention, visible, tokens = hidden_behind(sink, kinds)
    sums = MeasureSums(1, len(kinds))
    sums.add(LayerNumbers(reading_of(attention, visible), tuple(NEGLIGIBLE), tokens), tokens)
    result = dataclasses.replace(made_up_result(), measures={**measured(kinds), **sums.measures()})
    assert result.kinds.tolist() == [[sink] * len(kinds)]
    assert result.kinds_beside.tolist() == [kinds]
    (sentence,) = main_results(result)
    assert (sentence.numbers["n_sinks"], sentence.numbers["n_named"]) == (4, 3)
    assert result.to_dict()["kinds_beside"] == [kinds]
    alone = dataclasses.replace(made_up_result(), measures=measured(kinds))
    assert alone.kinds_beside.tolist() == [[""] * len(kinds)]  # heads without a sink


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_selections_beside_the_sink_equal_those_of_whole_maps(make):
    model = make()
    inputs = encoded(model)
    options = ProbeSettings(examples=len(inputs), preferences=0)
    result = probe_model(model, inputs, options)
    hits = {name: [] for name in BESIDE.values()}
    for example, ids in zip(result.examples, inputs.ids, strict=True):
        is_sink = np.isin(ids, list(inputs.separators)) | (np.arange(len(ids)) == 0)
        visible = np.isfinite(example.margins[0, 0])
        for query in np.flatnonzero(visible).tolist():
            seen = np.arange(len(ids)) <= (query if make is tiny_llama else len(ids))
            words = np.flatnonzero(seen & ~is_sink)
            if len(words) < 2:
                continue
            chosen = words[np.argmax(example.attention[:, :, query, words], axis=-1)]
            if query - 1 in words:
                hits["previous_beside_share"].append(chosen == query - 1)
            if query + 1 in words:
                hits["next_beside_share"].append(chosen == query + 1)
            if not is_sink[query]:
                hits["same_beside_share"].append(np.asarray(ids)[chosen] == ids[query])
    assert hits["previous_beside_share"]
    assert hits["same_beside_share"]
    for name, found in hits.items():
        if found:
            assert result[name] == pytest.approx(np.mean(found, axis=0), rel=ROUNDING, abs=ROUNDING)
        else:
            assert np.isnan(result[name]).all()


def test_queries_that_see_fewer_than_two_words_choose_nothing_beside_the_sink():
    attention, visible, tokens = hidden_behind("first", ["same"])
    visible[:, :, 3:] = False  # [CLS] and two words
    both = LayerNumbers(reading_of(attention, visible), (), tokens)
    assert both.chooses_beside[0].all()
    visible[:, :, 2:] = False
    one = LayerNumbers(reading_of(attention, visible), (), tokens)
    assert one.counted[0].all()
    assert not one.chooses_beside.any()
    attention[:, :, :, 1:3] = 0.05  # both words tie
    visible[:, :, 2:3] = True
    tied = LayerNumbers(reading_of(attention, visible), (), tokens)
    assert (tied.beside[0] == -1).all()


def test_without_token_names_no_neighbour_kind_is_assigned():
    numbers = measured(["previous", "first"], names=False)
    for name in ("previous_share", "next_share", "same_share", "separator_share"):
        assert np.isnan(numbers[name]).all()
    result = dataclasses.replace(made_up_result(), measures=numbers)
    assert result.kinds.tolist() == [["content", "first"]]
    assert result.kinds_beside.tolist() == [["", ""]]


@pytest.mark.parametrize("make", [tiny_bert, tiny_llama])
def test_kind_shares_of_a_model_equal_those_of_its_examples(make):
    model = make()
    inputs = encoded(model)
    result = probe_model(model, inputs, ProbeSettings(examples=len(inputs), preferences=0))
    for name, offset in (("previous_share", -1), ("next_share", 1)):
        hits = [
            example.selected[:, :, query] == query + offset
            for example in result.examples
            for query in range(len(example.tokens))
            if 0 <= query + offset < len(example.tokens) and np.isfinite(example.margins[0, 0, query])
        ]
        if make is tiny_llama and offset == 1:  # no query of a causal model sees the token behind it
            assert np.isnan(result[name]).all()
        else:
            assert np.allclose(result[name], np.mean(hits, axis=0), rtol=ROUNDING, atol=0.0)
    assert any(example.planes for example in result.examples)


# ---- in the plane


@pytest.mark.parametrize(("n_tokens", "scale"), [(5, 0.3), (20, 2.0)])
def test_a_plane_preserves_attention_and_runner_up_distance(n_tokens, scale):
    rng = np.random.default_rng(n_tokens)
    keys, vector = rng.normal(size=(n_tokens, 8)), rng.normal(size=8)
    logits = scale * keys @ vector + 3.0  # a constant of the query changes nothing
    plane = QueryPlane.of(4, logits, keys, vector)
    assert plane.query == 4
    assert plane.tokens.tolist() == np.argsort(-logits)[:MAX_TOKENS].tolist()
    assert plane.keys[:, 0] == pytest.approx(logits[plane.tokens] - logits.max(), rel=SIX_DIGITS, abs=ROUNDING)
    first, second = keys[plane.tokens[:2]]
    assert np.linalg.norm(plane.keys[1]) == pytest.approx(
        scale * np.linalg.norm(vector) * np.linalg.norm(second - first), rel=SIX_DIGITS, abs=ROUNDING
    )
    problem = lab_problem(plane)
    factor = problem.start[0]
    assert factor * problem.data.K[0] == pytest.approx(plane.keys, rel=1e-3, abs=ROUNDING)  # four digits
    assert factor == pytest.approx(
        np.abs(problem.data.K).max(), rel=1e-3, abs=ROUNDING
    )  # query and keys in one picture
    assert problem.data.scores(problem.head)[0].argmax() == 0
    assert problem.start[1] == 0.0
    assert permalink(problem).startswith("#1.")
    named = lab_problem(plane, [f"word {position}" for position in range(n_tokens)])
    assert named.words == (tuple(f"word {position}" for position in plane.tokens),)
    assert permalink(named) != permalink(problem)


def test_degenerate_tokens_have_no_plane():
    keys, vector = np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([1.0, 0.0])
    assert QueryPlane.of(0, keys @ vector, keys, vector) is None  # the runner-up lies along the query
    same = np.ones((3, 2))
    assert QueryPlane.of(0, same @ vector, same, vector) is None
