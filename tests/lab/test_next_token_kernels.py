"""The page's windows, priority graphs and automaton against the library, on texts and on random sequences."""

from __future__ import annotations

import os
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import ask, needs_node
from marginlens.data import text_windows
from marginlens.data.vocabulary import Characters, Words
from marginlens.graphs import ranking_evidence
from marginlens.graphs.priority import component_order
from marginlens.nexttoken.automaton import TIE

pytestmark = needs_node

N_RANDOM = int(os.environ.get("MARGINLENS_LAB_PROBLEMS", "10"))
TEXT = """How much wood would a woodchuck chuck, if a woodchuck could chuck wood? He would chuck, he would, as much as he could,
and chuck as much wood as a woodchuck would if a woodchuck could chuck wood. Don't ask: naïve 𝔘nicode isn't “chucked”."""


def random_sequences(number: int) -> ml.SequenceDataset:
    """Random sequences of random lengths, each with a label among its tokens, one-hot."""
    rng = np.random.default_rng([1805, number])
    n_vocabulary, n_samples = int(rng.integers(3, 12)), int(rng.integers(2, 40))
    samples = [rng.integers(n_vocabulary, size=rng.integers(2, 9)) for _ in range(n_samples)]
    preference = rng.permutation(n_vocabulary)  # mostly acyclic in one half of the data, anything in the other
    labels = [
        ids[np.argmin(preference[ids])] if number % 2 and rng.random() < 0.9 else rng.choice(ids) for ids in samples
    ]
    return ml.SequenceDataset(samples, np.array(labels), np.eye(n_vocabulary))


def text_data(unit: Any, window: int) -> ml.SequenceDataset:
    return text_windows(TEXT * 2, window, unit).data


@cache
def datasets() -> tuple[ml.SequenceDataset, ...]:
    texts = (text_data(Characters(), 8), text_data(Characters(), 3), text_data(Words(), 6))
    return (ml.data.figure_2(), *texts, *map(random_sequences, range(N_RANDOM)))


def as_request(data: ml.SequenceDataset) -> dict[str, Any]:
    samples = [data[i][0].tolist() for i in range(len(data))]
    return {"samples": samples, "labels": data.labels.tolist(), "nVocabulary": data.n_vocabulary}


@pytest.mark.parametrize(("unit", "name"), [(Characters(), "characters"), (Words(), "words")])
def test_text_windows_agree_with_python(unit: Any, name: str) -> None:
    answer = ask([{"call": "windows", "text": TEXT, "unit": name, "window": 5}])[0]
    named = text_windows(TEXT, 5, unit)
    assert answer["names"] == list(named.vocabulary.names)
    assert answer["tokens"] == named.data.tokens.tolist()
    assert answer["labels"] == named.data.labels.tolist()
    assert answer["dropped"] == len(named.data.dropped)


def test_priority_graphs_agree_with_python() -> None:
    for data, answer in zip(
        datasets(), ask([{"call": "graphs", **as_request(data)} for data in datasets()]), strict=True
    ):
        graphs = ml.priority_graphs(data)
        assert [graph["last"] for graph in answer] == sorted(graphs)
        for mine in answer:
            theirs = graphs[mine["last"]]
            assert mine["nodes"] == theirs.nodes.tolist()
            assert np.array_equal(np.array(mine["edges"]).reshape(-1, 2), theirs.edges)
            assert mine["counts"] == theirs.counts.tolist()
            assert mine["componentOf"] == theirs.component_of.tolist()
            assert np.array_equal(np.array(mine["strict"]).reshape(-1, 2), theirs.strict)
            for name, matrix in component_order(theirs)._asdict().items():
                assert np.array_equal(np.array(mine[name]).reshape(-1, 2), np.argwhere(matrix))
            evidence = ranking_evidence(data, theirs)
            found = [(one["label"], one["other"], one["samples"]) for one in mine["evidence"]]
            expected = np.column_stack([evidence.pairs, evidence.samples]).tolist()
            assert sorted(found) == sorted(map(tuple, expected))


def asked_of(data: ml.SequenceDataset, automaton: ml.NextTokenAutomaton) -> list[list[int]]:
    """Training sequences, new ones, and some with two tokens of equal height that the data do not compare."""
    rng = np.random.default_rng(len(data))
    old = [data[int(i)][0].tolist() for i in rng.integers(len(data), size=3)]
    new = [rng.integers(data.n_vocabulary, size=rng.integers(1, 10)).tolist() for _ in range(12)]
    tied = []
    for last, graph in automaton.graphs.items():
        height = automaton.heights(last)
        for i, j in combinations(graph.nodes.tolist(), 2):
            if (
                abs(height[i] - height[j]) < TIE
                and graph.component(i) != graph.component(j)
                and height[last] <= height[i]
            ):
                tied.append([i, j, last])
    chosen = rng.permutation(len(tied))[:25]
    return [*old, *new, *(tied[k] for k in chosen)]


def compared_expansion(automaton: ml.NextTokenAutomaton, mine: dict[str, Any]) -> int:
    """Fail where the slower terms of the path after a last token differ; returns how many grow."""
    last = mine["last"]
    theirs = automaton.expansion(last)
    assert (mine["offset"] is None) == bool(np.isnan(theirs.offset).any())
    assert len(mine["slow"]) == len(theirs.slow)
    for slow, matrix in zip(mine["slow"], theirs.slow, strict=True):
        assert np.array(slow) == pytest.approx(matrix[:, last], abs=1e-8, rel=0.0)
    if mine["offset"] is not None:  # up to multiples of what grows, which have no meaning in a constant term
        growing = np.column_stack([automaton.heights(last), *(matrix[:, last] for matrix in theirs.slow)])
        difference = theirs.offset[:, last] - np.array(mine["offset"])
        along = np.linalg.lstsq(growing, difference, rcond=None)[0]
        assert growing @ along == pytest.approx(difference, abs=1e-7, rel=0.0)
    return len(theirs.slow)


def test_automaton_and_reasons_agree_with_python() -> None:
    automata = [ml.NextTokenAutomaton.fit(data) for data in datasets()]
    requests = [
        {"call": "automaton", **as_request(data), "asked": asked_of(data, automaton), "window": 5}
        for data, automaton in zip(datasets(), automata, strict=True)
    ]
    ties, slow_terms = dict.fromkeys(("NONE", "OFFSET", "SLOW"), 0), 0
    for data, automaton, request, answer in zip(datasets(), automata, requests, ask(requests), strict=True):
        for last in range(data.n_vocabulary):
            assert np.array(answer["heights"][last]) == pytest.approx(automaton.heights(last), abs=1e-9, rel=0.0)
        assert pytest.approx(data.E @ automaton.mix.x @ data.E.T, abs=1e-9, rel=0.0) == np.array(answer["mix"]).T
        slow_terms += sum(compared_expansion(automaton, mine) for mine in answer["later"])
        for ids, mine, reasons in zip(request["asked"], answer["probabilities"], answer["explanations"], strict=True):
            explanation = automaton.explain(ids)
            ties[explanation.tie.name] += 1
            assert reasons["tie"] == explanation.tie.name, (ids, reasons)
            assert np.array(mine) == pytest.approx(automaton.predict_proba(ids, slow="limit"), abs=1e-9, rel=0.0)
            assert reasons["isKnown"] == explanation.is_known
            assert {rival["token"]: (rival["count"], rival["component"]) for rival in reasons["rivals"]} == {
                rival.token: (rival.count, rival.component) for rival in explanation.rivals
            }
            assert {(pair["winner"], pair["loser"]) for pair in reasons["reasons"]} == {
                (i, j) for i, j, _ in explanation.reasons
            }
            assert set(reasons["implied"]) == explanation.implied
        ids = list(request["asked"][0])
        for token in answer["continued"]:
            probability = automaton.predict_proba(ids[-5:], slow="limit")
            assert probability[token] >= probability.max() - 1e-9
            ids.append(token)
    assert min(ties.values()) > 0, ties
    assert slow_terms > 0
