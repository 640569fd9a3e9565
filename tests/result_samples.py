"""One or more samples of every result of the library, by name: small, and the same in every process."""

import atexit
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np

import marginlens as ml
from made_up_probe import made_up_curves, made_up_result
from marginlens import theory
from marginlens.data import figure_1b, gaussian_tokens, sphere_tokens
from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings import check_assumption_4
from marginlens.embeddings.models import initial_parameters
from marginlens.embeddings.one_step import first_step
from marginlens.graphs import ranking_evidence
from marginlens.nexttoken.path_expansion import ExpansionKind, PathExpansion
from marginlens.probe.difference import ProbeDifference
from marginlens.probe.heads.max_margin import HeadMargin, MarginMatch
from marginlens.risk.smoothness import smoothness
from marginlens.svm.graph import GraphConflict
from marginlens.svm.vocabulary import closed_form_candidate
from marginlens.sweeps.summary import CellSummary, Numbers, Shares, Summary

SEQUENCES = [[0, 1, 2], [1, 2, 3], [0, 3, 2]]
LABELS = [1, -1, 1]


def attention():
    data, head = sphere_tokens(12, 2, 4, 6, 0)
    kept = ml.Record(steps=5, keep=("norm", "excess_risk", "selected", "margin"))
    runs = ml.descend(data, head, n_steps=40, record=kept)
    plane, v = figure_1b()
    yield "runs with a record", runs
    yield "runs", ml.descend(data, head, n_steps=5)
    yield "one run", ml.descend(data[0], head[0], n_steps=5)
    yield "one run with a record", ml.descend(data[0], head[0], n_steps=40, record=kept)
    yield "a run in the plane", ml.descend(plane, v, n_steps=40, record=ml.Record(keep="x"))
    yield "solutions", ml.att_svm(data, runs.selected)
    yield "a solution", ml.att_svm(data[0], runs.selected[0])
    yield "a solution in another norm", ml.att_svm(data[0], runs.selected[0], norm=ml.L1())
    twins = ml.TokenDataset(np.ones((2, 1, 2, 2)), np.ones((2, 1)))
    yield "infeasible problems", ml.att_svm(twins, np.zeros((2, 1), int))
    yield "an infeasible problem", ml.att_svm(ml.TokenDataset([[[1.0, 0.0], [1.0, 0.0]]], [1.0]), [0])
    yield "a bracket", ml.att_svm(data[0], runs.selected[0]).bracket()
    yield "brackets", runs.bracket(ml.L2())
    yield "a set of solutions", ml.set_svm(plane, [[0, 1]])
    yield "a set of solutions in six dimensions", ml.set_svm(data[0], [[0], [1, 2]])
    yield "a mixture", ml.svm.mixture_svm(data[0], [[0], [1, 2]])
    yield "a path", ml.path(data[0], [1.0, 10.0, 100.0], head=head[0])
    yield "a joint path", ml.path(ml.JointRisk(data[0]), [[1.0, 1.0], [10.0, 10.0]], restarts=2)
    yield "a problem", data[0]
    yield "a batch of problems", data
    yield "a problem in the plane", plane


def theorems():
    data, v = figure_1b()
    batch, heads = sphere_tokens(3, 2, 3, 3, 0)
    plain, head = gaussian_tokens(1, 2, 3, 3, 0)
    cone = theory.basin_cone(data, v, [1])
    prediction = theory.predict_limit(data, v, start=[1.0, 0.0], optimizer=ml.GradientDescent(0.1))
    yield "a prediction in the plane", prediction
    yield "a prediction", theory.predict_limit(batch[0], heads[0])
    yield "a prediction for both layers", theory.predict_limit(plain[0])
    yield "a prediction without a theorem", theory.predict(ml.AttentionRisk(data, lambda x: x.sum(-1)))
    yield "candidates", prediction.candidates
    yield "an outcome", prediction.outcome
    yield "a certificate", prediction.certificate
    yield "a forecast", prediction.certificate.forecast([0, 10, 100])
    finite, head = ml.data.sphere_tokens(12, 2, 4, 3, 0)
    yield "a proof of a minimum", theory.predict_limit(finite[11], head[11]).certificate
    steps = ml.SignDescent(0.02)
    point = ml.descend(ml.AttentionRisk(batch[0], heads[0]), optimizer=steps, n_steps=2000).final
    yield "a proof in a norm", theory.certify(batch[0], heads[0], point, optimizer=steps)
    yield "a theorem", prediction.verdicts[0]
    yield "a condition", theory.check_assumption_a(data, v)
    yield (
        "a condition on mixtures",
        theory.check_assumption_c(
            ml.data.figure_3a(), theory.best_selections(ml.data.figure_3a()).selections[0], n_samples=50
        ),
    )
    yield "a selection", theory.token_optimality(data, v, [1])
    features = [[[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]]]
    yield "responses", theory.winning_responses(features, ml.risk.preferences(features, [0], [1]))
    yield "selections", theory.globally_optimal_direction(batch, heads)
    yield "locally optimal directions", theory.locally_optimal_directions(batch[0], heads[0])
    yield "locally optimal directions in the plane", theory.locally_optimal_directions(data, v)
    yield "a cone", cone
    yield "the law of residual attention", theory.residual_law(data, v, [1])
    yield (
        "laws of residual attention",
        theory.residual_law(batch, heads, theory.globally_optimal_direction(batch, heads).selected),
    )
    yield "smoothness", smoothness(data, v)
    yield "smoothness of a batch", smoothness(batch, heads)


def vocabulary():
    rng = np.random.default_rng(0)
    E, p = rng.standard_normal((4, 5)), rng.standard_normal(5)
    data = LabelledSequences(SEQUENCES, LABELS)
    yield "a closed form", closed_form_candidate(E, data, theory.selected_tokens(E, p, data))
    yield "labelled sequences", data
    yield "statistics of tokens", ml.token_statistics(data)
    yield "Assumption 4", check_assumption_4(data)
    wide = initial_parameters(4, 256, rng, np.float64)
    yield "a first step", first_step(wide, 1.0, data)


def next_tokens():
    rng, sequences = np.random.default_rng(0), ml.data.cyclic_sequences(5, 6, 5, 4, 0)
    many = ml.data.cyclic_sequences(30, 40, 5, 40, 0)
    graphs = ml.priority_graphs(sequences)
    graph = max(graphs.values(), key=lambda graph: len(graph.edges))
    automaton = ml.NextTokenAutomaton.fit(sequences)
    yield "what a head does", ml.nexttoken.check_head(sequences, rng.standard_normal(sequences.E.shape))
    yield (
        "what a head does with many tokens",
        ml.nexttoken.check_head(many, many.E + 0.2 * rng.standard_normal(many.E.shape)),
    )
    contexts = ml.ContextDataset(rng.standard_normal((3, 4)), [[2, 1, 0, 0, 1], [0, 3, 1, 0, 0], [1, 0, 0, 2, 0]])
    yield "contexts", contexts
    yield "a decoder's margin", ml.ntp_svm(contexts)
    yield "no decoder", ml.ntp_svm(ml.ContextDataset([[1.0], [2.0]], np.eye(2)))
    yield "a decoder's finite part", ml.nexttoken.finite_part(contexts)
    yield "a prediction for a decoder", ml.predict_limit(contexts)
    chain = ml.nexttoken.MarkovChain(rng.dirichlet(np.ones(3), 3))
    yield "a chain", chain
    topic = ml.NextTokenAutomaton.fit(ml.SequenceDataset([[0, 1, 2], [1, 2, 2]], [0, 1], np.eye(3)))
    yield "a topic that stays", ml.nexttoken.topic_change(topic, topic, [0, 1, 1, 2])
    yield "a matrix of a graph", ml.graph_svm(sequences)
    yield "a run on matrices", ml.descend(sequences, n_steps=3)
    yield "sequences", sequences
    yield "the cyclic part of sequences", ml.graphs.cyclic_subset(sequences)
    yield "a matrix between tokens and queries", ml.svm.bilinear_svm(np.eye(3), np.eye(2), [(0, 0, 1), (1, 2, 1)])
    yield "a graph", graph
    yield "a large graph", ml.graphs.graphs_of_edges(np.zeros(60, int), np.arange(60), np.arange(1, 61), 61)[0]
    yield "evidence of a graph", ranking_evidence(sequences, graph)
    yield "an automaton", automaton
    yield "an explanation", automaton.explain(sequences[0][0])
    yield "a score", automaton.score(sequences)
    yield "a cyclic correction", ml.cyclic_correction(sequences)
    yield "an expansion", automaton.expansion(int(sequences.last[0]))
    yield "an unknown expansion", PathExpansion((), np.full((2, 2), np.nan), list(ExpansionKind)[-1], "it is not known")
    pairs, ties = np.array([[0, 1, 2], [0, 2, 3]]), np.array([[0, 1, 3]])
    yield "a conflict", GraphConflict(pairs, np.array([0.5, 0.5]), ties, np.array([1.0]), 3, 1, (2,), 1e-15)


def sweeps():
    words = Shares({"GMM": 30, "LMM": 10})
    numbers = Numbers(40, 0, 0, 0.9, 0.01, 0.5, 1.0, {0.05: 0.6, 0.5: 0.95, 0.95: 1.0})
    cells = tuple(CellSummary({"d": d}, 40, {"optimality": words, "correlation": numbers}) for d in (2, 4))
    yield "a summary", Summary(cells)
    folder = Path(mkdtemp(prefix="marginlens-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    plan = {"d": [2, 4], "n_inputs": 2, "n_tokens": 3, "n_problems": 20, "n_steps": 20}
    yield "a sweep", ml.sweep(plan, folder / "sweep", ThreadPoolExecutor(1))


def probes():
    result = made_up_result()
    yield "a probe", result
    yield "an example of a probe", result.examples[0]
    yield "checkpoints", made_up_curves()
    matches = [MarginMatch(0.1 * k, 0.2 - 0.1 * k, 0.3, 0.4, 12, ml.Status.OPTIMAL, 1e-12) for k in range(7)]
    yield "how max-margin a head is", HeadMargin(matches[6], tuple(matches[:2]), 3)
    other = made_up_result({"entropy": result["entropy"] - 0.1}, model="other")
    differences = {name: values - other[name] for name, values in result.measures.items()}
    yield (
        "a difference of models",
        ProbeDifference(result, other, {"total_variation": result["nnz"] / 2.0, **differences}),
    )


@cache
def samples():
    """Name → result."""
    groups = (attention, theorems, vocabulary, next_tokens, sweeps, probes)
    return {name: result for group in groups for name, result in group()}
