"""What every helper says to an argument that cannot be used: one sentence that names it, never a traceback from within."""

from functools import partial

import numpy as np
import pytest

import marginlens as ml
from marginlens import data, svm, theory
from marginlens.arithmetic import directions
from marginlens.risk import softmax
from marginlens_papers.claims.a.gradient_conditions import key_inequality, local_gradient_bounds
from marginlens_papers.claims.a.mixing import distance_to_set, log_nonoptimality
from marginlens_papers.claims.b.embedding_limits import tightest_slack
from marginlens_papers.claims.b.feasible_selections import feasible_selections
from marginlens_papers.claims.ours.residual_attention import deviation, position

FIGURE, V = data.figure_1c()
ALONE, HEAD = data.figure_1b()
SELECTED = np.zeros(3, dtype=int)
TOKENS = ml.TokenDataset(np.random.default_rng(0).normal(size=(2, 3, 4)), [1, -1])
E, SEQUENCES, Y = np.random.default_rng(1).normal(size=(6, 8)), [[0, 1, 2], [0, 3], [4, 5, 1]], [1, -1, 1]
CONE = theory.basin_cone(FIGURE, V, SELECTED)
LAW = theory.residual_law(FIGURE, V, SELECTED)
FOUND = feasible_selections(E, SEQUENCES)
NAMES, _ = data.Characters().index("words")
P = np.ones(2)

NEVER = [None, "nonsense", object(), {"a": 1}, b"ab", 1j * np.ones(2), np.array(["a", "b"])]
NUMBER = [*NEVER, np.nan, [[1.0], [1.0, 2.0]], [], np.ones((2, 2))]  # for one number
TIMES = [np.ones(2, dtype="m8[s]"), np.ones(2, dtype="M8[s]")]
WEIGHTS = [*NEVER, 3.7, [[1.0], [1.0, 2.0]], 10**400, *TIMES]  # for vectors
WHOLE = [*NUMBER, 3.7, -1, True]
INDICES = [*NEVER, 3.7, [[0], [0, 1]], [0.5, 1.0], np.ones((1, 1, 1))]
TEXT = [None, 3.7, object(), b"ab", ["a", "b"], np.ones(2)]

HELPERS = {
    "length x": (lambda x: directions.length(x), WEIGHTS),
    "unit x": (lambda x: directions.unit(x), WEIGHTS),
    "correlation a": (lambda x: ml.correlation(x, P), WEIGHTS),
    "correlation b": (lambda x: ml.correlation(P, x), WEIGHTS),
    "correlation axes": (lambda x: ml.correlation(P, P, axes=x), [*WHOLE, 0]),
    "angle a": (lambda x: ml.angle(x, P), [*WEIGHTS, np.ones(3)]),
    "angle b": (lambda x: ml.angle(P, x), [*WEIGHTS, np.ones(3)]),
    "Logistic u": (lambda x: ml.Logistic().value(x), NEVER),
    "Exponential u": (lambda x: ml.Exponential().log_abs_derivative(x), NEVER),
    "rise delta": (lambda x: ml.CorrelationLoss().rise(np.ones(3), x), [*NEVER, np.ones(2)]),
    "signed_log_rise sign": (lambda x: ml.Logistic().signed_log_rise(np.ones(3), 0.0, x).log, [*NEVER, np.ones(2)]),
    "constants low": (lambda x: ml.Exponential().constants(x, 1.0), NUMBER),
    "repeat n_copies": (FIGURE.repeat, WHOLE),
    "selection selected": (FIGURE.selection, INDICES),
    "gaussian_tokens n_inputs": (lambda x: data.gaussian_tokens(2, x, 3, 4, 0), [*WHOLE, 0]),
    "scored_tokens keys": (lambda x: data.scored_tokens(x, np.ones((2, 3))), [*WEIGHTS, np.ones((2, 2))]),
    "scored_tokens scores": (lambda x: data.scored_tokens(np.ones((2, 3, 1)), x), WEIGHTS),
    "scored_tokens y": (lambda x: data.scored_tokens(np.ones((2, 3, 1)), np.ones((2, 3)), x), [*WEIGHTS[1:], [1.0]]),
    "figure_5 C": (data.figure_5, WEIGHTS[:3]),
    "Levels deltas": (lambda x: data.Levels(x), [*NEVER, 3.7, []]),
    "Levels sizes": (lambda x: data.Levels((0.1,), x), [None, object(), {"a": 1}, 3.7, np.ones((1, 1))]),
    "Levels share": (lambda x: data.Levels(share=x), NUMBER),
    "chances y": (data.Levels().chances, [*NUMBER, 0]),
    "level_sequences levels": (lambda x: data.level_sequences(4, 2, 0, x), [*NEVER[1:], 3.7, 0]),
    "LabelledSequences y": (lambda x: data.LabelledSequences(SEQUENCES, x), [*WEIGHTS, []]),
    "SequenceDataset unrealizable": (
        lambda x: data.SequenceDataset([[0, 1]], [0], np.eye(2), unrealizable=x),
        [*NEVER, np.ones(2)],
    ),
    "split text": (data.Words().split, TEXT),
    "index text": (data.Characters().index, TEXT),
    "encode text": (NAMES.encode, TEXT),
    "ids names": (NAMES.ids, [None, 3.7, object(), [3.7], {0: 1}]),
    "join names": (data.Characters().join, [None, 3.7, [3.7]]),
    "decode ids": (NAMES.decode, [*INDICES, [-1], [99]]),
    "text_windows unit": (lambda x: data.text_windows("hello hello", 3, x), [*NEVER[1:5], data.Words]),
    "read_text path": (data.read_text, [None, 3.7, object()]),
    "read_sequences path": (data.read_sequences, [None, 3.7, object()]),
    "write_sequences path": (lambda x: data.write_sequences(x, data.figure_2()), [None, 3.7, object()]),
    "ordered_sequences order": (lambda x: data.ordered_sequences(x, 3, 4, 2, 0), INDICES),
    "least_distance A": (lambda x: svm.least_distance(x, np.ones(2)), WEIGHTS),
    "least_distance equalities": (lambda x: svm.least_distance(np.eye(2), P, equalities=x), WEIGHTS[1:]),
    "least_distance pairs": (lambda x: svm.least_distance(np.eye(2), P, pairs=x), INDICES[1:]),
    "set_svm selected": (lambda x: svm.set_svm(TOKENS, x), [*NEVER, 3.7, [[0]], np.array(1.0)]),
    "vocabulary_svm selected": (lambda x: svm.vocabulary_svm(E, SEQUENCES, x), [*INDICES, np.array(1.0)]),
    "bilinear_svm triples": (lambda x: svm.bilinear_svm(E, E, x), INDICES),
    "matrix_from_vector p": (lambda x: ml.risk.matrix_from_vector(x, P), WEIGHTS),
    "as_matrix data": (lambda x: ml.AttentionRisk(x, V).as_matrix(P), NEVER),
    "as_matrix start": (lambda x: ml.descend(ml.AttentionRisk(TOKENS, np.ones(4)).as_matrix(P), start=x), WEIGHTS[1:]),
    "descend v": (lambda x: ml.descend(FIGURE, x, n_steps=1), WEIGHTS),
    "flow record": (
        lambda x: ml.flow(ALONE, HEAD, record=ml.Record(x)),
        [*NEVER, 3.7, [[1], [1, 2]]],
    ),
    "Record keep": (lambda x: ml.Record(keep=x), [None, 3.7, np.ones((1, 1)), np.array(1.0), [None]]),
    "excess_risk data": (lambda x: ml.AttentionRisk(x, V).excess(P, SELECTED), NEVER),
    "Cone axis": (lambda x: ml.Cone(x, 0.1, 1.0), [*WEIGHTS, []]),
    "radius_for C_0": (lambda x: CONE.radius_for(x, 0.5), [*NUMBER, 0.0]),
    "explicit_radius nu": (lambda x: CONE.explicit_radius(0.5, x), [*NUMBER, 0.0]),
    "in_cone p": (lambda x: theory.in_cone(x, P, 0.1), WEIGHTS),
    "in_cone mu": (lambda x: theory.in_cone(P, P, x), [*NEVER, np.nan, -0.1]),
    "in_cone radius": (lambda x: theory.in_cone(np.ones((3, 2)), P, 0.1, x), [*NEVER, np.nan, np.ones(2)]),
    "sample_cone radius": (lambda x: theory.sample_cone(P, 0.1, x, 3, 0), NUMBER),
    "position R": (partial(position, LAW), [*NEVER, np.nan, -1.0]),
    "deviation p": (partial(deviation, LAW), WEIGHTS),
    "key_inequality log_s": (lambda x: key_inequality(x, P, P), [*NEVER, np.inf, np.ones(3), []]),
    "key_inequality a": (lambda x: key_inequality(np.log([0.5, 0.5]), P, x), [*NEVER, np.inf, np.ones(3)]),
    "local_gradient_bounds cone": (lambda x: local_gradient_bounds(FIGURE, V, x, np.ones((1, 2))), NEVER),
    "local_gradient_bounds q": (
        lambda x: local_gradient_bounds(FIGURE, V, CONE, np.ones((1, 2)), x),
        WEIGHTS[1:],
    ),
    "token_ranks tie": (lambda x: theory.token_ranks(E, np.ones(8), SEQUENCES, tie=x), NUMBER[1:]),
    "feasible_selections required": (lambda x: feasible_selections(E, SEQUENCES, required=x), INDICES[1:]),
    "FeasibleSelections.index selection": (
        FOUND.index,
        [None, "nonsense", 3.7, [3.7], [[0.5]], [], [[0, 1, 2], [0, 3]]],
    ),
    "check_assumption_c inputs": (lambda x: theory.check_assumption_c(FIGURE, SELECTED, inputs=x), INDICES[1:]),
    "check_assumption_c max_problems": (lambda x: theory.check_assumption_c(FIGURE, SELECTED, max_problems=x), WHOLE),
    "check_assumption_c rng": (lambda x: theory.check_assumption_c(FIGURE, SELECTED, rng=x), WHOLE),
    "check_theorem_5 delta": (lambda x: theory.check_theorem_5(SEQUENCES, Y, rate=1.0, d_model=8, delta=x), NUMBER),
    "tightest_slack solution": (tightest_slack, NEVER),
    "distance_to_set solutions": (lambda x: distance_to_set(P, x), [*NEVER, 3.7, np.array(1.0)]),
    "distance_to_set radius": (lambda x: distance_to_set(P, [P], x), [*NEVER[1:], np.nan, np.ones(2)]),
    "log_nonoptimality p": (lambda x: log_nonoptimality(TOKENS, x, [[0], [0]]), WEIGHTS),
    "predict_limit max_problems": (lambda x: theory.predict_limit(ALONE, HEAD, max_problems=x), [*WHOLE, 0]),
    "predict_limit loss": (lambda x: theory.predict_limit(FIGURE, loss=x), NEVER[1:]),
    "softmax p": (lambda x: softmax(FIGURE, x), WEIGHTS),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", HELPERS)
def test_an_unusable_argument_is_named(name):
    helper, unusable = HELPERS[name]
    for value in unusable:
        with pytest.raises(ml.InputError) as caught:
            helper(value)
        assert all((caught.value.argument, caught.value.expected, caught.value.got))


def test_tensors_that_require_grad_are_refused():
    torch = pytest.importorskip("torch")
    for name, (helper, unusable) in HELPERS.items():
        if any(unusable is kind for kind in (WEIGHTS, INDICES)):
            with pytest.raises(ml.InputError) as caught:
                helper(torch.ones(2, requires_grad=True))
            assert caught.value.argument, name
