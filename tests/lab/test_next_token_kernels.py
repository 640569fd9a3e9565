"""The page's windows, priority graphs, automaton and descent on W against the library, on texts and on random sequences."""

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
from marginlens.dynamics import Record
from marginlens.graphs import ranking_evidence
from marginlens.graphs.priority import component_order
from marginlens.nexttoken.automaton import TIE
from tolerances import ROUNDING

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
    begins = sorted(set(range(len(named.data) + len(named.data.dropped))) - set(named.data.dropped.tolist()))
    assert answer["starts"] == begins


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
            found = [(one["label"], one["other"], one["samples"], one["first"]) for one in mine["evidence"]]
            expected = np.column_stack([evidence.pairs, evidence.samples, evidence.first]).tolist()
            assert sorted(found) == sorted(map(tuple, expected))
            for (label, other), behind in zip(mine["edges"], mine["behind"], strict=True):
                assert behind == [
                    i
                    for i in range(len(data))
                    if data[i][0][-1] == mine["last"] and data[i][1] == label and other in data[i][0]
                ]


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


def probabilities(W: np.ndarray, ids: Any) -> np.ndarray:
    """What a one-hot layer with weights W expects after a sequence."""
    logits = W[ids, ids[-1]]
    weights = np.exp(logits - logits.max())
    return np.bincount(ids, weights / weights.sum(), minlength=len(W))


@pytest.mark.parametrize("name", ["NormalizedGD", "GradientDescent"])
def test_descent_on_w_agrees_with_python(name: str) -> None:
    size = 0.01 if name == "NormalizedGD" else 2.0  # long normalised steps jump about a finite minimum for ever
    steps = [0, 1, 10, 64, 100, 400]
    chosen = datasets()[:1] + datasets()[2:14]
    rule = {"normalized": name == "NormalizedGD", "size": size, "steps": steps}
    asked = [[data[0][0].tolist(), [1, 0, 2, 2, 1], [2]] for data in chosen]
    requests = [
        {"call": "nexttoken", **as_request(data), **rule, "asked": ids} for data, ids in zip(chosen, asked, strict=True)
    ]
    ranked = 0
    for data, sequences, answer in zip(chosen, asked, ask(requests), strict=True):
        run = ml.descend(data, optimizer=getattr(ml, name)(size), n_steps=steps[-1], record=Record(steps))
        x, k = np.array(answer["pairs"]).T
        points = np.array(answer["points"])
        expected = run.saved["x"][:, x, k]
        assert np.linalg.norm(points - expected) <= 1e-9 * max(1.0, np.linalg.norm(expected))
        automaton = ml.NextTokenAutomaton.fit(data)
        distance = [automaton.total_variation(data, W).mean() for W in run.saved["x"]]
        assert answer["distances"] == pytest.approx(distance, abs=1e-9, rel=0.0)
        losses = [np.mean([-np.log(probabilities(W, ids)[label]) for ids, label in data]) for W in run.saved["x"]]
        assert answer["losses"] == pytest.approx(losses, rel=1e-9, abs=ROUNDING)
        for ids, mine in zip(sequences, answer["probabilities"], strict=True):
            assert mine == pytest.approx(probabilities(run.saved["x"][-1], ids), abs=1e-9, rel=0.0)
        svm = ml.graph_svm(data).x
        if np.any(svm):
            ranked += 1
            cosines = [np.sum(W * svm) / np.linalg.norm(W) / np.linalg.norm(svm) for W in run.saved["x"][1:]]
            assert answer["correlations"][1:] == pytest.approx(cosines, abs=1e-9, rel=0.0)
    assert ranked > 0


def test_descent_on_w_continues_at_norm_a_million() -> None:
    data = ml.SequenceDataset([[0, 1, 2], [1, 2, 2], [2, 0, 1], [0, 2, 1]], np.array([0, 1, 2, 2]), np.eye(3))
    steps = [0, 1, 50, 400]
    start = 1e6 * ml.graph_svm(data).direction + 3.0 * np.random.default_rng(3).standard_normal((3, 3))
    rule = {"normalized": True, "size": 0.02, "steps": steps, "start": start.ravel().tolist()}
    answer = ask([{"call": "nexttoken", **as_request(data), **rule}])[0]
    run = ml.descend(data, optimizer=ml.NormalizedGD(0.02), n_steps=steps[-1], start=start, record=Record(steps))
    x, k = np.array(answer["pairs"]).T
    expected = run.saved["x"][:, x, k]
    assert np.linalg.norm(expected[-1] - expected[0]) > 5.0
    assert np.array(answer["points"]) == pytest.approx(expected, rel=1e-9, abs=ROUNDING)
