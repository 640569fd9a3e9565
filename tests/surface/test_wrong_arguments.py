"""Random wrong arguments end in an `InputError` or in an answer, never in another exception."""

import warnings

import numpy as np
import pytest

import marginlens as ml

N_CALLS = 2000
HUGE = 10**30
WRONG = [
    None,
    "nonsense",
    b"bytes",
    object,
    print,
    {},
    {"a": 1},
    set(),
    1j,
    True,
    -1,
    0,
    3,
    HUGE,
    1.5,
    float("nan"),
    float("inf"),
    -0.5,
    [],
    [[]],
    [[1, 2], [3]],
    ["a", "b"],
    [None, None],
    (1, 2),
    slice(2),
    range(3),
    np.array([]),
    np.ones(2),
    np.ones(7),
    np.zeros((0, 3)),
    np.ones((2, 2)),
    np.ones((2, 3, 4, 5, 6)),
    np.full(4, np.nan),
    np.full((2, 3, 4), np.inf),
    1j * np.ones(4),
    np.array(["a", "b"]),
    np.array([None, 1.0]),
    np.array(["2026-01-01"], dtype="datetime64[D]"),
    np.array([2**63], dtype=np.uint64),
    np.array([-1, 10**9]),
]


def calls():
    """Every public function and class with arguments that are right."""
    data, head = ml.data.sphere_tokens(1, 2, 3, 4, 0)
    data, head = data[0], head[0]
    sequences = ml.data.cyclic_sequences(4, 5, 4, 3, 0)
    selected, risk = np.array([0, 1]), ml.AttentionRisk(data, head)
    rows = np.array([[1.0, 0.5], [0.2, 1.0]])
    run = ml.descend(data, head, n_steps=2)
    graphs = ml.priority_graphs(sequences)
    yield "TokenDataset", ml.TokenDataset, {"X": data.X, "y": data.y, "K": data.K}
    yield "SequenceDataset", ml.SequenceDataset, {"sequences": [[0, 1], [1, 0]], "labels": [1, 0], "E": np.eye(2)}
    yield "AttentionRisk", ml.AttentionRisk, {"data": data, "head": head, "loss": ml.Logistic()}
    yield "JointRisk", ml.JointRisk, {"data": data, "loss": ml.Logistic()}
    yield "NextTokenRisk", ml.NextTokenRisk, {"data": sequences, "head": None, "loss": ml.LogLoss()}
    for name in ("value", "log_value", "gradient", "select"):
        yield f"AttentionRisk.{name}", getattr(risk, name), {"x": head}
    yield "AttentionRisk.margin_rows", risk.margin_rows, {"selected": selected}
    right = {"n_steps": 2, "start": head, "record": None, "loss": None, "optimizer": None}
    yield "descend", ml.descend, {"problem": data, "head": head, **right}
    yield "descend on sequences", ml.descend, {"problem": sequences, "n_steps": 2, "start": None, "head": None}
    yield "Trajectory.resume", run.resume, {"n_steps": 1, "record": None}
    yield "Trajectory index", run.__getitem__, {"index": 0}
    yield "Record", ml.Record, {"steps": 1, "keep": ("x",)}
    yield "Cone", ml.Cone, {"axis": head, "mu": 0.3, "radius": 1.0}
    yield "GradientDescent", ml.GradientDescent, {"size": 1.0}
    yield "NormalizedGD", ml.NormalizedGD, {"size": 1.0}
    yield "UntilNorm", ml.UntilNorm, {"norm": 2.0}
    yield "UntilLength", ml.UntilLength, {"length": 2.0}
    for norm, x in ((ml.L2(), head), (ml.Frobenius(), rows)):
        for method, argument in (("value", "x"), ("dual", "g"), ("steepest", "g")):
            yield f"{type(norm).__name__}.{method}", getattr(norm, method), {argument: x}
    yield "att_svm", ml.att_svm, {"data": data, "selected": selected}
    yield "relaxed_svm", ml.relaxed_svm, {"data": data, "selected": selected, "support": [0]}
    yield "set_svm", ml.set_svm, {"data": data, "selected": [[0], [1]], "max_problems": 5}
    yield "label_svm", ml.label_svm, {"R": rows, "y": np.array([1.0, -1.0])}
    right = {"E": np.eye(3), "sequences": [[0, 1], [1, 2]], "selected": [[0], [1]]}
    yield "vocabulary_svm", ml.vocabulary_svm, right
    yield "graph_svm", ml.graph_svm, {"data": sequences, "graphs": graphs}
    yield "least_distance", ml.least_distance, {"A": rows, "lower": np.ones(2)}
    yield "predict_limit", ml.predict_limit, {"data": data, "head": head, "start": head, "max_problems": 50}
    yield "token_optimality", ml.token_optimality, {"data": data, "head": head, "selected": selected}
    yield "locally_optimal_directions", ml.locally_optimal_directions, {"data": data, "head": head, "max_problems": 50}
    yield "basin_cone", ml.basin_cone, {"data": data, "head": head, "selected": data.optimal(head)}
    yield "priority_graphs", ml.priority_graphs, {"data": sequences}
    yield "cyclic_subset", ml.cyclic_subset, {"data": sequences}
    yield "cyclic_correction", ml.cyclic_correction, {"data": sequences, "head": None, "loss": None, "restarts": 0}
    yield "NextTokenAutomaton.fit", ml.NextTokenAutomaton.fit, {"data": sequences}
    yield "token_statistics", ml.token_statistics, {"sequences": [[0, 1], [1, 2]], "y": [1, -1]}
    yield "correlation", ml.correlation, {"a": head, "b": head, "axes": 1}
    yield "angle", ml.angle, {"a": head, "b": head, "axes": 1}
    shape = {"n_problems": 1, "n_inputs": 2, "n_tokens": 3, "d_model": 4, "rng": 0}
    yield "sphere_tokens", ml.data.sphere_tokens, shape


CALLS = {name: (function, arguments) for name, function, arguments in calls()}
# a right answer that would take years
TOO_LARGE = {"n_steps", "n_problems", "n_inputs", "n_tokens", "d_model", "restarts"}


def test_wrong_arguments_give_an_input_error_or_a_result():
    rng = np.random.default_rng(0)
    names, failures, refused = list(CALLS), [], 0
    for _ in range(N_CALLS):
        name = names[rng.integers(len(names))]
        function, right = CALLS[name]
        argument = list(right)[rng.integers(len(right))]
        wrong = WRONG[rng.integers(len(WRONG))]
        if argument in TOO_LARGE and wrong is HUGE:
            continue
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                function(
                    *[wrong if key == argument else value for key, value in right.items()]
                ) if name == "Trajectory index" else function(**{**right, argument: wrong})
        except ml.InputError:
            refused += 1
        except IndexError:
            refused += argument == "index"
            if argument != "index":
                raise
        except Exception as problem:
            failures.append(f"{name}({argument}={wrong!r}): {problem!r}")
    assert not failures, "\n".join(sorted(set(failures)))
    assert refused > N_CALLS / 2


@pytest.mark.parametrize("name", CALLS)
def test_right_arguments_are_accepted(name):
    function, right = CALLS[name]
    function(*right.values()) if name == "Trajectory index" else function(**right)
