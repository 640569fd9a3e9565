"""What every result can do: become JSON, be drawn, and show itself in a notebook."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

import marginlens as ml


def results():
    data, head = ml.data.sphere_tokens(3, 2, 4, 6, 0)
    recorded = ml.descend(data, head, n_steps=20, record=ml.Record(steps=5, keep=("norm", "excess_risk")))
    yield "runs with a record", recorded
    yield "runs", ml.descend(data, head, n_steps=5)
    yield "one run", ml.descend(data[0], head[0], n_steps=5)
    yield "solutions", ml.att_svm(data, recorded.selected)
    yield "a solution", ml.att_svm(data[0], recorded.selected[0])
    twins = ml.TokenDataset([[[1.0, 0.0], [1.0, 0.0]]], [1.0])
    yield "an infeasible problem", ml.att_svm(twins, [0])
    sequences = ml.data.cyclic_sequences(5, 6, 5, 4, 0)
    yield "a matrix of a graph", ml.graph_svm(sequences)
    yield "a run on matrices", ml.descend(sequences, n_steps=3)


RESULTS = dict(results())


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_becomes_json_a_picture_and_a_table(name):
    result = RESULTS[name]
    described = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert described["status"] == (result.status.name if not result.is_batch else [one.name for one in result.status])
    _, ax = plt.subplots()
    assert result.plot(ax) is ax
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert ax.patches or ax.lines or ax.images
    plt.close("all")
    page = result._repr_html_()
    assert type(result).__name__ in page
    assert "<table>" in page
    assert "<svg" in page


def test_plot_makes_axes_of_its_own_where_none_are_given():
    ax = RESULTS["one run"].plot()
    assert ax.figure is plt.gcf()
    plt.close("all")


def test_a_status_has_a_sentence_and_says_whether_the_answer_was_found():
    assert RESULTS["a solution"].status.ok
    assert not RESULTS["an infeasible problem"].status.ok
    assert all(status.value.endswith(".") for status in ml.Status)
    assert np.array([status.ok for status in RESULTS["runs"].status]).all()
