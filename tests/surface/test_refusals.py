"""Arguments of the right kind that make no sense together: one sentence that names the argument, and no other exception."""

import numpy as np
import pytest

import marginlens as ml
from marginlens import data, embeddings, graphs, probe, svm
from marginlens.gpu.device import as_device
from marginlens.losses.next_token import CrossEntropy, LogLoss, SquaredLoss, as_nexttoken_loss
from marginlens.nexttoken import WindowNgram, limit_risk
from marginlens.norms.choice import as_norm, norm_named
from marginlens.optimizers import Blockwise, PowerDecay
from marginlens.probe.heads.preferences import head_preferences, visible_types
from marginlens.theory.embedding_limits import selected_tokens
from marginlens_papers.claims.b.feasible_selections import feasible_selections
from marginlens_papers.claims.b.first_step_bounds import first_step_errors, initial_concentration
from marginlens_papers.claims.b.outputs import one_layer_outputs, two_layer_outputs
from marginlens_papers.claims.c.next_token_paths import path_law, path_radius
from marginlens_papers.claims.random_data import acyclic_sequences_as_coded, balanced_sequences, class_clusters
from plain_losses import Linear


class Empty(ml.losses.NextTokenLoss):
    """A loss that defines nothing."""


class NoNorm:
    """What has a value and nothing else of a norm."""

    def value(self, x):
        return float(np.abs(x).sum())


EYE, PAIR, GOOD = np.eye(3), np.ones(2), np.ones((2, 3, 4))
TOKENS, HEAD = data.figure_1b()
OWN_KEYS = ml.TokenDataset(TOKENS.X, TOKENS.y)
JOINT = ml.JointRisk(data.figure_3a())
RUN = ml.descend(TOKENS, HEAD, n_steps=1)
PATH = ml.path(TOKENS, 1.0, head=HEAD, restarts=0)
ROWS = np.eye(2)
CORNER = ml.TokenDataset([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]], [1, 1])
DATA = ml.SequenceDataset([[0, 1, 2]], [0], EYE)
GRAPHS = ml.priority_graphs(DATA)
GRAPH = ml.priority_graphs(ml.SequenceDataset([[0, 1], [1, 0, 2]], [0, 1], EYE))[1]
EDGES = {"last": [2, 2], "head": [0, 1], "tail": [1, 0], "n_vocabulary": 3}
TABLE = graphs.to_table(GRAPH)
SPACE = graphs.cyclic_subspace(EYE, GRAPHS)
RAGGED = ml.TokenDataset([np.ones((2, 4)), np.ones((3, 4))], [1, -1])
BATCH, _ = data.sphere_tokens(5, 2, 3, 4, 0)
FACTORS = ml.AttentionRisk(BATCH[0], np.ones(4)).as_factors([1.0, 2.0], 2)
ACYCLIC, CYCLIC = data.acyclic_sequences(5, 4, 4, 4, 0), data.cyclic_sequences(5, 4, 6, 4, 0)
TIED = ml.SequenceDataset([[0, 1, 2]] * 3, [0, 0, 1], EYE)
UNEQUAL = ml.SequenceDataset([[0, 1]] * 2 + [[2, 3]] * 2, [0, 1, 2, 3], CYCLIC.E)
WITHOUT_LABEL = ml.SequenceDataset([[0, 1], [1, 2]], [0, 0], EYE, unrealizable="keep")
START = embeddings.initial_parameters(3, 4, 0, np.float64)
BROKEN = embeddings.Parameters(START.E, START.p * np.nan, START.v)
LABELLED = ([[0, 1, 2], [1, 0]], [1, -1])
W = np.ones((6, 2))
TEXT = "to be or not to be, that is the question"


def scaled(sequences, factor):
    return ml.SequenceDataset([sequences[i][0] for i in range(len(sequences))], sequences.labels, factor * sequences.E)


REFUSED = [
    # data
    ("index", lambda: BATCH["a"]),
    ("index", lambda: BATCH[[True, False]]),
    ("index", lambda: BATCH[0:0]),
    ("head", lambda: RAGGED.scores(np.ones(3))),
    ("start", lambda: RAGGED.point([0, np.inf, 0, 0], "start")),
    ("selected", lambda: RAGGED.selection([2, 2])),
    ("selected", lambda: RAGGED.selection([0.5, 1.0])),
    ("scores", lambda: data.scored_tokens(np.ones((3, 4, 2)), np.ones((2, 4)))),
    ("sequences", lambda: data.LabelledSequences([[0, 1], [2], [0, 4, 1]], [1, 1, -1], 4)),
    ("y", lambda: data.LabelledSequences([[0], [1]], [1, 0])),
    ("W", lambda: ml.SequenceDataset([[0, 1]], [0], EYE).logits(np.eye(2))),
    ("n_tokens", lambda: data.sphere_tokens(1, 1, 0, 2, 0)),
    ("n_tokens", lambda: acyclic_sequences_as_coded(4, 3, 2, 5, 0)),
    ("n_samples", lambda: data.cyclic_sequences(4, 3, 1, 5, 0)),
    ("order", lambda: data.ordered_sequences([0, 0, 1], 3, 2, 2, 0)),
    ("deltas", lambda: data.Levels(deltas=(1.5,))),
    ("sizes", lambda: data.Levels(sizes=(3,))),
    ("share", lambda: data.Levels(share=1.0)),
    ("n_samples", lambda: balanced_sequences(5, 4, 1, 1, 0)),
    ("n_important", lambda: balanced_sequences(4, 4, 3, 1, 0)),
    ("n_irrelevant", lambda: balanced_sequences(4, 3, 1, 5, 0)),
    ("window", lambda: data.text_windows("abcab", 5)),
    ("text", lambda: data.text_windows(" \n ", 1, data.Words())),
    ("pattern", lambda: data.Words(pattern="(")),
    ("pattern", lambda: data.Words(pattern="(a)b")),
    ("window", lambda: data.text_windows("".join(map(chr, range(5000))), 3, d_model=None)),
    ("d_model", lambda: data.text_windows("".join(map(chr, range(5000))) + "aaa", 3)),
    ("held_out", lambda: data.split_text_windows(TEXT, 4, held_out=1.0)),
    ("held_out", lambda: data.split_text_windows(TEXT, 4, held_out=0.01)),
    ("held_out", lambda: data.split_text_windows(TEXT, 4, held_out=0.99)),
    ("X", lambda: ml.TokenDataset(np.ones((3, 4)), [1, 1])),
    ("X", lambda: ml.TokenDataset(np.full((2, 3, 4), np.nan), [1, 1])),
    ("X", lambda: ml.TokenDataset([], [])),
    ("X", lambda: ml.TokenDataset([np.ones((2, 3)), np.ones((2, 4))], [1, 1])),
    ("X", lambda: ml.TokenDataset([[*GOOD], [GOOD[0]]], np.ones((2, 2)))),
    ("X", lambda: ml.TokenDataset(GOOD + 1j, [1, 1])),
    ("y", lambda: ml.TokenDataset(GOOD, [1, 0])),
    ("y", lambda: ml.TokenDataset(GOOD, [1])),
    ("K", lambda: ml.TokenDataset(GOOD, [1, 1], K=np.ones((2, 4, 4)))),
    ("K", lambda: ml.TokenDataset(GOOD, [1, 1], W=np.eye(4), K=GOOD)),
    ("W", lambda: ml.TokenDataset(GOOD * 1e200, [1, 1], W=1e200 * np.eye(4))),
    ("sequences", lambda: ml.SequenceDataset([[0, 1], [0, 3]], [0, 0], EYE)),
    ("sequences", lambda: ml.SequenceDataset([[0, 1], []], [0, 0], EYE)),
    ("sequences", lambda: ml.SequenceDataset([], [], EYE)),
    ("sequences[0]", lambda: ml.SequenceDataset([[0.5, 1.0]], [0], EYE)),
    ("sequences[0]", lambda: ml.SequenceDataset([[[0], [1, 2]]], [0], EYE)),
    ("sequences", lambda: ml.SequenceDataset("ab", [0], EYE)),
    ("labels", lambda: ml.SequenceDataset([[0, 1]], [0, 1], EYE)),
    ("labels", lambda: ml.SequenceDataset([[0, 1]], [7], EYE)),
    *(
        ("E", lambda E=E: ml.SequenceDataset([[0, 1]], [0], E))
        for E in (EYE[0], np.zeros((2, 0)), np.array([[1.0, 0.0], [np.nan, 1.0]]), np.ones((2, 2)))
    ),
    ("first", lambda: data.sphere_problems(-1, 2, 1, 2, 3, 0)),
    ("last", lambda: data.sphere_problems(2, 2, 1, 2, 3, 0)),
    ("seed", lambda: data.sphere_problems(0, 2, 1, 2, 3, -1)),
    ("seed", lambda: data.gaussian_problems(0, 2, 1, 2, 3, 2**64)),
    ("cell", lambda: data.gaussian_problems(0, 2, 1, 2, 3, 0, 2**32)),
    ("n_tokens", lambda: data.sphere_problems(0, 2, 1, 0, 3, 0)),
    ("d_model", lambda: data.sphere_problems(0, 1, 1000, 1000, 10**6, 0)),
    ("spread", lambda: class_clusters(4, 2, 6, 0.0, 0)),
    *(("device", lambda name=name: as_device(name)) for name in ("gpu", "cuda:", "cuda:x", "CUDA", 1, None)),
    # directions, losses, risks, optimizers
    ("b", lambda: ml.correlation(np.ones((2, 3)), np.ones((4, 3)))),
    ("b", lambda: ml.angle(np.ones((3, 4, 4)), np.ones((3, 3, 4)), axes=2)),
    ("low, high", lambda: ml.Logistic().constants(1, 0)),
    ("loss", lambda: ml.descend(TOKENS, HEAD, loss=ml.Logistic)),
    ("loss", lambda: ml.losses.Loss().value(0.0)),
    ("loss", lambda: ml.losses.Loss().derivative(0.0)),
    ("loss", lambda: as_nexttoken_loss("log")),
    ("loss", lambda: as_nexttoken_loss(LogLoss)),
    ("loss", lambda: as_nexttoken_loss(Empty())),
    ("head", lambda: ml.descend(TOKENS)),
    ("loss", lambda: ml.descend(ml.AttentionRisk(TOKENS, HEAD), loss=ml.Logistic())),
    ("optimizer", lambda: ml.descend(TOKENS, HEAD, optimizer=ml.GradientDescent)),
    ("optimizer", lambda: ml.descend(TOKENS, HEAD, optimizer=Blockwise(ml.GradientDescent(1.0)), n_steps=1)),
    ("start", lambda: ml.descend(FACTORS, start=[[1, 2], [3]], n_steps=1)),
    ("start[1]", lambda: ml.descend(FACTORS, start=(np.ones((2, 2)), np.ones((3, 3))), n_steps=1)),
    ("risk", lambda: ml.descend(TOKENS, HEAD, n_steps=1).split()),
    ("until", lambda: ml.flow(TOKENS, HEAD, until=500.0)),
    ("rtol", lambda: ml.flow(TOKENS, HEAD, rtol=0.5)),
    ("start", lambda: ml.flow(TOKENS, HEAD, start=EYE[0])),
    ("record", lambda: ml.flow(TOKENS, HEAD, record="p")),
    ("steps", lambda: ml.flow(TOKENS, HEAD, record=ml.Record(steps=[3, 1]))),
    ("n_steps", lambda: ml.descend(TOKENS, HEAD, n_steps=-1)),
    ("optimizer", lambda: ml.descend(TOKENS, HEAD, optimizer=0.1)),
    ("start", lambda: ml.descend(TOKENS, HEAD, start=np.ones(5))),
    ("start", lambda: ml.descend(TOKENS, HEAD, start=[np.nan, 0])),
    ("record", lambda: ml.descend(TOKENS, HEAD, record=10)),
    ("steps", lambda: ml.descend(TOKENS, HEAD, record=ml.Record([3, 2]))),
    ("steps", lambda: ml.descend(TOKENS, HEAD, record=ml.Record([3, 3]))),
    ("steps", lambda: ml.descend(TOKENS, HEAD, record=ml.Record([[1], [2, 3]]))),
    ("steps", lambda: ml.descend(TOKENS, HEAD, record=ml.Record([2000]))),
    ("progress", lambda: ml.descend(TOKENS, HEAD, progress=5)),
    ("head", lambda: ml.descend(TOKENS, int, n_steps=2)),
    ("head", lambda: ml.descend(ml.TokenDataset(10.0 * TOKENS.X, TOKENS.y), np.full(2, 1e308))),
    ("problem", lambda: ml.descend(TOKENS.X, HEAD)),
    ("n_steps", lambda: RUN.resume(-1)),
    ("norm", lambda: RUN.bracket(ml.Spectral())),
    ("norm", lambda: RUN.bracket("l1")),
    ("run", lambda: ml.descend(JOINT, n_steps=2).bracket(ml.L2())),
    ("keep", lambda: ml.Record(1, ("loss",))),
    ("keep", lambda: ml.Record(1, 3)),
    ("data", lambda: ml.AttentionRisk(TOKENS.X, HEAD)),
    ("query", lambda: ml.AttentionRisk(OWN_KEYS, HEAD).as_matrix(np.zeros(2))),
    *(
        ("query", lambda query=query: ml.AttentionRisk(BATCH[0], np.ones(4)).as_matrix(query))
        for query in (np.ones((3, 4)), np.ones((1, 2, 4)), np.diag([1.0, 0.0]), [[1, 2], [3]])
    ),
    ("width", lambda: ml.AttentionRisk(BATCH[0], np.ones(4)).as_factors(np.ones((2, 4)), 0)),
    ("start", lambda: ml.descend(JOINT, start=0.0)),
    ("start[0]", lambda: ml.descend(JOINT, start=(np.zeros(3), np.zeros(2)))),
    ("start[1]", lambda: ml.descend(JOINT, start=(np.zeros(2), np.zeros(3)))),
    ("record", lambda: ml.descend(JOINT, record=3)),
    ("data", lambda: ml.JointRisk("data")),
    ("data", lambda: ml.descend([1])),
    ("data", lambda: ml.descend([])),
    ("start", lambda: ml.descend(ACYCLIC, start=np.zeros((5, 4)))),
    ("start", lambda: ml.descend([ACYCLIC, ACYCLIC], start=np.zeros((1, 4, 4)))),
    ("head", lambda: ml.descend(ACYCLIC, head=np.eye(7))),
    ("head", lambda: ml.descend([ACYCLIC], head=[None, None])),
    ("loss", lambda: ml.descend(ACYCLIC, loss=LogLoss)),
    ("optimizer", lambda: ml.descend(ACYCLIC, optimizer=0.1)),
    ("n_steps", lambda: ml.descend(ACYCLIC, n_steps=-1)),
    ("record", lambda: ml.descend(ACYCLIC, record=3)),
    ("loss", lambda: ml.descend(ACYCLIC, loss=CrossEntropy(), record=ml.Record(keep="excess_risk"))),
    ("classes", lambda: ml.risk.MulticlassRisk(np.ones((3, 2)), [0, 0, 0])),
    ("classes", lambda: ml.risk.MulticlassRisk(np.ones((3, 2)), [0, 1])),
    ("classes", lambda: ml.risk.MulticlassRisk(np.ones((3, 2)), [0, -1, 1])),
    ("size", lambda: ml.NormalizedGD(0)),
    ("size", lambda: ml.SignDescent("a")),
    ("size", lambda: ml.SignDescent(PowerDecay)),
    ("size", lambda: PowerDecay(np.nan)),
    ("power", lambda: PowerDecay(1.0, -1.0)),
    ("norm", lambda: ml.SteepestDescent(ml.L2, 1.0)),
    ("norm", lambda: ml.SteepestDescent("linf", 1.0)),
    ("norm", lambda: ml.descend(TOKENS, HEAD, optimizer=ml.Muon(0.1))),
    ("norm", lambda: ml.descend(TOKENS, HEAD, optimizer=ml.SteepestDescent(ml.Nuclear(), 0.1))),
    ("norm", lambda: ml.descend(TOKENS, HEAD, optimizer=ml.SteepestDescent(ml.MaxRow(), 0.1))),
    ("optimizer", lambda: ml.predict(ml.AttentionRisk(TOKENS, HEAD), optimizer=ml.Muon(0.1))),
    ("momentum", lambda: ml.SignDescent(1.0, momentum=1.0)),
    ("momentum", lambda: ml.Muon(1.0, momentum=-0.1)),
    ("betas", lambda: ml.Adam(1.0, (0.9, 1.0))),
    ("betas", lambda: ml.Adam(1.0, 0.9)),
    ("eps", lambda: ml.Adam(1.0, eps=-1e-8)),
    ("p", lambda: ml.MirrorDescent(0.5, 1.0)),
    ("p", lambda: ml.MirrorDescent(1.0, 1.0)),
    *(("norm", lambda name=name: norm_named(name)) for name in ("l0.5", "l", "euclid", "", "lnan", "l-1", "p3")),
    *(("p", lambda p=p: ml.Lp(p)) for p in (0.5, 0.0, -2, np.nan, 1, np.inf, "a", None, [2, 3])),
    *(("norm", lambda norm=norm: as_norm(norm, (3,))) for norm in (ml.L2, 2, "linf", None, ml.Spectral(), ml.MaxRow())),
    # paths
    *(
        ("radii", lambda radii=radii: ml.path(TOKENS, radii, head=HEAD))
        for radii in ([0.0, 1.0], [-2.0], [1.0, 3.0, 2.0], [1.0, 1.0], [], [1.0, np.nan], "a", None)
    ),
    ("cone.mu", lambda: ml.Cone([1.0, 0.0], 0.0, 1.0)),
    ("cone.mu", lambda: ml.Cone([1.0, 0.0], 2.0, 1.0)),
    ("cone.axis", lambda: ml.Cone([0.0, 0.0], 0.1, 1.0)),
    ("cone.radius", lambda: ml.Cone([1.0], 0.1, 0.0)),
    ("region", lambda: ml.path(TOKENS, [5.0], head=HEAD, region=ml.Cone([1.0, 0.0, 0.0], 0.1, 1.0))),
    ("region", lambda: ml.path(TOKENS, [5.0], head=HEAD, region=0.1)),
    ("radii", lambda: ml.path(TOKENS, [5.0], head=HEAD, region=ml.Cone([1.0, 0.0], 0.1, 6.0))),
    ("problem", lambda: ml.path(TOKENS.as_batch(), [1.0], head=HEAD)),
    ("norm", lambda: ml.path(TOKENS, [1.0], head=HEAD, norm="l2")),
    ("region", lambda: ml.path(JOINT, (1.0, 1.0), region=ml.Cone([1.0, 0.0], 0.1, 1.0))),
    ("direction", lambda: PATH.distance([1.0, 0.0, 0.0])),
    ("risk", lambda: PATH.split()),
    ("r", lambda: ml.path(JOINT, ([0.0, 1.0], [1.0, 2.0]))),
    ("R", lambda: ml.path(JOINT, ([1.0, 2.0], [2.0, 1.0]))),
    ("R", lambda: ml.path(JOINT, ([1.0, 2.0], [1.0, 2.0, 3.0]))),
    ("problem", lambda: ml.path(ml.JointRisk(JOINT.data.repeat(2)), (1.0, 1.0))),
    ("restarts", lambda: ml.path(JOINT, (1.0, 1.0), restarts=0)),
    # margin problems
    ("selected[0]", lambda: svm.set_svm(TOKENS, [[]])),
    ("selected[0]", lambda: svm.set_svm(TOKENS, [[3]])),
    ("selected[0]", lambda: svm.set_svm(TOKENS, [[1, 1]])),
    ("selected[0]", lambda: svm.set_svm(TOKENS, [[True, False, True]])),
    ("selected", lambda: svm.set_svm(TOKENS, [[0], [1], [0]])),
    ("graphs", lambda: svm.graph_svm(ACYCLIC.E, list(ml.priority_graphs(ACYCLIC).values()))),
    ("graphs", lambda: svm.graph_svm(ACYCLIC.E, {0: "a graph"})),
    ("graphs", lambda: svm.graph_svm(ACYCLIC.E[:2], ml.priority_graphs(ACYCLIC))),
    ("E", lambda: svm.graph_svm(ACYCLIC.E[0], ml.priority_graphs(ACYCLIC))),
    ("E", lambda: svm.graph_svm(1e-70 * ACYCLIC.E, ml.priority_graphs(ACYCLIC))),
    ("A", lambda: svm.least_distance(np.ones(3), PAIR)),
    ("A", lambda: svm.least_distance(np.ones((2, 0)), PAIR)),
    ("A", lambda: svm.least_distance("rows", PAIR)),
    ("A", lambda: svm.least_distance(ROWS * np.nan, PAIR)),
    ("A", lambda: svm.least_distance(1e120 * ROWS, PAIR)),
    ("A", lambda: svm.least_distance(1e-120 * ROWS, PAIR)),
    ("lower", lambda: svm.least_distance(ROWS, np.ones(3))),
    ("lower", lambda: svm.least_distance(ROWS, [1.0, -0.5])),
    ("equalities", lambda: svm.least_distance(ROWS, PAIR, equalities=np.ones((1, 4)))),
    ("pairs", lambda: svm.least_distance(ROWS, PAIR, pairs=np.zeros((1, 3), dtype=int))),
    ("pairs", lambda: svm.least_distance(ROWS, PAIR, pairs=np.zeros((2, 3)))),
    ("norm", lambda: svm.least_distance(ROWS, PAIR, norm=ml.Spectral())),
    ("norm", lambda: svm.least_distance(ROWS, PAIR, norm=NoNorm())),
    ("norm", lambda: svm.least_distance(ROWS, PAIR, norm="linf")),
    ("data", lambda: svm.att_svm(ml.TokenDataset(1e200 * ROWS[None], [1]), [0])),
    ("selected", lambda: svm.att_svm(CORNER, [0, 3])),
    ("data", lambda: svm.att_svm(CORNER.X, [0, 0])),
    ("norm", lambda: svm.att_svm(CORNER, [0, 0], norm=NoNorm())),
    ("norm", lambda: svm.att_svm(CORNER, [0, 0], norm=ml.Spectral())),
    ("query", lambda: svm.att_svm(CORNER, [0, 0], norm=ml.Nuclear(), query=np.ones((3, 2)))),
    ("query", lambda: svm.att_svm(CORNER, [0, 0], query=np.full((2, 2), np.nan))),
    ("solution", lambda: svm.att_svm(CORNER, [0, 0]).rank()),
    ("support", lambda: svm.relaxed_svm(CORNER, [0, 0], [3])),
    ("support", lambda: svm.relaxed_svm(CORNER, [0, 0], [True])),
    ("support", lambda: svm.relaxed_svm(CORNER, [0, 0], [0.5])),
    ("y", lambda: svm.label_svm(ROWS, [1.0, 0.0])),
    ("R", lambda: svm.label_svm(np.ones(3), [1.0])),
    ("norm", lambda: svm.graph_svm(ROWS, {}, norm=NoNorm())),
    ("X", lambda: svm.bilinear_svm(1e80 * ROWS, ROWS, [[0, 0, 1]])),
    ("X", lambda: svm.bilinear_svm(ROWS, 1e-200 * ROWS, [[0, 0, 1]])),
    *(
        ("triples", lambda triples=triples: svm.bilinear_svm(EYE, ROWS, triples))
        for triples in ([[2, 0, 1]], [[0, 0, 1], [0, 1, -1]], [[0.5, 0.0, 1.0]], [[0, 1]])
    ),
    ("selected[1]", lambda: svm.vocabulary_svm(EYE, [[0], [0, 1]], [[0], [2]])),
    ("selected", lambda: svm.vocabulary_svm(EYE, [[0], [1]], [[0]])),
    ("selected[0]", lambda: svm.vocabulary_svm(EYE, [[0]], [[]])),
    ("selected[0]", lambda: svm.vocabulary_svm(EYE, [[0]], [[0.0]])),
    ("selected", lambda: svm.vocabulary_svm(EYE, [[0]], 3)),
    ("sequences", lambda: selected_tokens(EYE, np.ones(3), [[0], [1, 5]])),
    ("tie", lambda: selected_tokens(EYE, np.ones(3), [[0]], tie=-1.0)),
    ("required[0]", lambda: feasible_selections(EYE, [[0, 1]], required=[[2]])),
    ("sequences", lambda: feasible_selections(EYE, [[0, 1, 2]], max_problems=5)),
    ("optimal_sets[0]", lambda: ml.theory.mixing_constants(ml.TokenDataset([[[1.0], [0.5], [0.0]]], [1]), [1.0], [[0, 1]])),
    ("optimal_sets[0]", lambda: ml.theory.mixing_constants(ml.TokenDataset([[[1.0]] * 3], [1]), [1.0], [[0, 1]])),
    ("optimal_sets[0]", lambda: ml.theory.mixing_constants(ml.TokenDataset([[[0.0], [0.0], [1.0]]], [1]), [1.0], [[0, 1]])),
    ("weights", lambda: svm.mixture_svm(BATCH[0], [[0, 1], [2]], [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])),
    ("weights", lambda: svm.mixture_svm(BATCH[0], [[0, 1], [2]], [1.0, 0.5])),
    ("query", lambda: svm.mixture_svm(BATCH[0], [[0], [2]], query=np.ones((3, 4)))),
    ("selected[1]", lambda: svm.mixture_svm(BATCH[0], [[0], []])),
    ("norm", lambda: svm.mixture_svm(BATCH[0], [[0], [2]], norm=ml.Nuclear())),
    ("data", lambda: svm.mixture_svm(BATCH, [[0], [2]])),
    # graphs
    ("W", lambda: SPACE.project(ROWS)),
    ("W", lambda: SPACE.project(np.full((2, 3, 3), np.nan))),
    ("graphs", lambda: graphs.cyclic_subspace(EYE, [])),
    ("graphs", lambda: graphs.cyclic_subspace(np.eye(1), {1: GRAPH})),
    ("threshold", lambda: graphs.pseudo_graphs(DATA, EYE, 1.0)),
    ("threshold", lambda: graphs.pseudo_graphs(DATA, np.zeros((3, 3)), 0.4)),
    ("graphs", lambda: graphs.leading_subset(DATA, ml.priority_graphs(ml.SequenceDataset([[0, 2]], [0], EYE)))),
    ("graphs", lambda: graphs.tied_positions(DATA, {})),
    ("rule", lambda: graphs.local_subset(DATA, GRAPHS, "label")),
    ("data", lambda: graphs.cyclic_subset(None, GRAPHS)),
    ("graphs", lambda: graphs.is_acyclic(None)),
    ("graphs", lambda: graphs.is_acyclic({"a": GRAPH})),
    ("graphs", lambda: graphs.is_acyclic({0: GRAPH})),
    ("token", lambda: GRAPH.component("0")),
    ("tokens", lambda: GRAPH.components_of([0.5])),
    ("graph", lambda: graphs.ranking_evidence(ml.SequenceDataset([[2, 1]], [2], EYE), GRAPH)),
    ("head", lambda: graphs.graphs_of_edges(**EDGES | {"head": [0, -1]})),
    ("tail", lambda: graphs.graphs_of_edges(**EDGES | {"tail": [0]})),
    ("n_vocabulary", lambda: graphs.graphs_of_edges(**EDGES | {"n_vocabulary": 2**21})),
    ("tables", lambda: graphs.from_tables([{"nodes": [0]}])),
    ("tables", lambda: graphs.from_tables("tables")),
    ("tables", lambda: graphs.from_tables([TABLE | {"edges": [[0, 1, 1]] * 2}])),
    ("tables", lambda: graphs.from_tables([TABLE | {"nodes": [0]}])),
    ("tables[0]", lambda: graphs.from_tables([TABLE | {"edges": [[0, 1, 1.5]]}])),
    ("window", lambda: ml.priority_graphs(DATA, window=2)),
    ("head", lambda: ml.priority_graphs([[0, 1, 2, 0, 1]], window=2, head=EYE)),
    # next tokens
    ("radii", lambda: ml.path(ACYCLIC, [2.0, 1.0])),
    ("radii", lambda: ml.path(ACYCLIC, -1.0)),
    ("radii", lambda: ml.path(ACYCLIC, 1e101)),
    ("data", lambda: ml.path(scaled(ACYCLIC, 1e70), 1.0)),
    ("data", lambda: ml.path(CYCLIC, 1.0, head=CYCLIC.E)),
    ("data", lambda: ml.path(WITHOUT_LABEL, [1.0])),
    ("loss", lambda: ml.path(ACYCLIC, 1.0, loss=CrossEntropy())),
    ("loss", lambda: ml.path(CYCLIC, 1.0, loss=Linear())),
    ("loss", lambda: ml.path(ACYCLIC, 1.0, loss=SquaredLoss())),
    ("head", lambda: ml.path(ACYCLIC, 1.0, head=-ACYCLIC.E, loss=Linear())),
    ("direction", lambda: ml.path(ACYCLIC, 1.0).distance(EYE)),
    ("path", lambda: path_law(ml.path(ml.SequenceDataset([[0, 1]] * 2, [0, 1], np.eye(2)), 1.0))),
    ("path", lambda: path_law(None)),
    ("distance", lambda: path_radius(ACYCLIC, 2.0)),
    ("data", lambda: path_radius(TIED, 0.5)),
    ("loss", lambda: path_radius(ACYCLIC, 0.5, loss=SquaredLoss())),
    ("head", lambda: path_radius(ACYCLIC, 0.5, head=-ACYCLIC.E, loss=Linear())),
    ("loss", lambda: limit_risk(ACYCLIC, loss=CrossEntropy())),
    ("loss", lambda: limit_risk(TIED, loss=Linear())),
    ("data", lambda: ml.cyclic_correction([[0, 1]])),
    ("data", lambda: ml.cyclic_correction(WITHOUT_LABEL)),
    ("head", lambda: ml.cyclic_correction(CYCLIC, head=np.eye(6))),
    ("start", lambda: ml.cyclic_correction(CYCLIC, start=np.eye(6))),
    ("loss", lambda: ml.cyclic_correction(CYCLIC, loss=LogLoss)),
    ("graphs", lambda: ml.cyclic_correction(UNEQUAL[:2], graphs=ml.priority_graphs(UNEQUAL))),
    ("data", lambda: ml.NextTokenRisk(WITHOUT_LABEL).hessian(EYE)),
    ("sequence", lambda: ml.NextTokenAutomaton.fit(TIED).predict_proba([0, 4])),
    ("sequence", lambda: ml.NextTokenAutomaton.fit(TIED).predict_proba([])),
    ("names", lambda: ml.NextTokenAutomaton.fit(TIED).explain([0], names="ab")),
    ("last", lambda: ml.NextTokenAutomaton.fit(TIED).heights(4)),
    ("data", lambda: ml.NextTokenAutomaton.fit(TIED).score(ml.SequenceDataset([[0, 1]], [0], np.eye(2)))),
    ("priority", lambda: ml.NextTokenAutomaton.fit(TIED, priority=3)),
    ("W", lambda: ml.NextTokenAutomaton.fit(TIED).predict_proba([0], W=np.eye(2))),
    ("slow", lambda: ml.NextTokenAutomaton.fit(TIED).predict_proba([0], slow="share")),
    ("ids", lambda: WindowNgram.of_text([0, 5], 2, 3)),
    ("order", lambda: WindowNgram.of_text([0, 1], 0, 3)),
    # embeddings
    ("n_vocabulary", lambda: embeddings.initial_parameters(0, 4, 0, "float64")),
    ("dtype", lambda: embeddings.initial_parameters(3, 4, 0, "int64")),
    ("spread", lambda: embeddings.initial_parameters(3, 4, 0, "float64", -1.0)),
    ("start", lambda: initial_concentration(None, 0.1)),
    ("start.p", lambda: initial_concentration(BROKEN, 0.1)),
    ("delta", lambda: initial_concentration(START, 1.5)),
    ("step", lambda: first_step_errors(None, 0.1)),
    ("model", lambda: embeddings.loss_and_gradients(START.E, *LABELLED)),
    ("model.E", lambda: embeddings.loss_and_gradients(embeddings.Parameters(START.E[:2], START.p, START.v), *LABELLED)),
    ("sequences", lambda: one_layer_outputs(START.E, START.p, START.v, [[0, 3]])),
    ("p", lambda: two_layer_outputs(START.E, START.p[:3], START.v, [[0]])),
    # pictures
    ("width", lambda: ml.plotting.paper(width="triple")),
    ("width", lambda: ml.plotting.paper(width=-1.0)),
    ("height", lambda: ml.plotting.paper(height=0.0)),
    ("font_size", lambda: ml.plotting.paper(font_size="small")),
    # heads of transformers
    ("s", lambda: probe.soft_sparsity([0.5, -0.5])),
    ("s", lambda: probe.soft_sparsity([np.nan, 1.0])),
    ("s", lambda: probe.soft_sparsity(np.empty((3, 0)))),
    ("W_Q", lambda: probe.KeyQueryMap(W, W[:5], np.zeros(2), 1.0)),
    ("b_Q", lambda: probe.KeyQueryMap(W, W, np.zeros(3), 1.0)),
    ("scale", lambda: probe.KeyQueryMap(W, W, np.zeros(2), 0.0)),
    ("logits", lambda: probe.select_tokens([[np.nan, 1.0]], [[True, True]])),
    ("logits", lambda: probe.select_tokens(np.empty((2, 0)))),
    ("visible", lambda: probe.select_tokens(np.zeros((2, 3)), np.ones((3, 2), dtype=bool))),
    ("rounding", lambda: probe.select_tokens(np.zeros((2, 3)), rounding=-1.0)),
    ("rounding", lambda: probe.select_tokens(np.zeros((2, 3)), rounding=np.zeros(3))),
    ("inputs[1]", lambda: probe.sample_queries([np.ones((3, 6)), np.ones((3, 4))])),
    ("visible", lambda: probe.sample_queries([EYE, EYE], [np.ones((3, 3))])),
    ("inputs", lambda: probe.sample_queries([PAIR[None]])),
    ("heads", lambda: probe.layer_margins(probe.sample_queries([EYE]), [])),
    ("heads[0]", lambda: probe.head_margin(probe.sample_queries([EYE]), probe.KeyQueryMap(W, W, np.zeros(2), 1.0))),
    ("n_draws", lambda: probe.MaxMarginSettings(n_draws=0)),
    ("queries", lambda: probe.ProbeSettings(queries=0)),
    ("max_margin", lambda: probe.ProbeSettings(max_margin=1)),
    ("offset", lambda: probe.ProbeSettings(offset=-1)),
    ("selected", lambda: head_preferences(visible_types([np.array([1, 2])]), [np.array([0])])),
    ("selected", lambda: head_preferences(visible_types([np.array([1, 2])]), [np.array([0, 2])])),
    ("ids", lambda: visible_types([np.array([0.5])])),
    ("visible", lambda: visible_types([np.array([1, 2])], [np.ones((3, 3))])),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_the_error_names_the_argument_in_one_line(case):
    argument, call = REFUSED[case]
    with pytest.raises(ml.InputError) as refusal:
        call()
    assert refusal.value.argument == argument
    assert str(refusal.value).startswith(f"The '{argument}' argument must be ")
    assert "\n" not in str(refusal.value)
