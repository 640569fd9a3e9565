"""Probing the checkpoints of a training run: their order, the curves, the figure, and what is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps

from marginlens.errors import InputError
from marginlens.probe import run_margins
from marginlens.probe.checkpoints import _steps, checkpoint_folders, probe_checkpoints
from marginlens.probe.heads.max_margin import layer_margins
from marginlens.probe.models.loading import load_model
from marginlens.probe.run import probe_model
from marginlens.probe.settings import ProbeSettings
from marginlens.runtime.progress import Silence
from tiny_transformers import TEXTS, save, tiny_bert, tiny_vit

EXACT = 1e-12  # a rank correlation of two or three numbers, to rounding
SHARPNESS = {"epoch-1": 0.2, "epoch-2": 1.0, "epoch-10": 5.0}  # by name epoch-10 comes second


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    for name, sharpness in SHARPNESS.items():
        save(tiny_bert(sharpness=sharpness), folder / name)
    (folder / "logs").mkdir()
    return folder


@pytest.fixture(scope="module")
def curves(run):
    return probe_checkpoints(run, list(TEXTS))


def test_sparsity_falls_while_norms_grow(run, curves):
    assert curves.names == tuple(SHARPNESS)
    assert curves.steps.tolist() == [1.0, 2.0, 10.0]
    assert np.allclose(curves.trend("relative_nnz"), -1.0, atol=EXACT)
    assert np.allclose(curves.trend("frobenius"), 1.0, atol=EXACT)
    growth = curves.measures["frobenius"] / curves.measures["frobenius"][0]
    # the keys of one model, multiplied; the weights are stored in float64 and loaded so
    assert np.allclose(growth, np.array([1.0, 5.0, 25.0])[:, None, None], rtol=1e-6)
    alone = probe_model(load_model(run / "epoch-10"), list(TEXTS))
    for name, values in alone.heads:
        assert np.array_equal(curves.measures[name][2], values, equal_nan=True), name


@pytest.fixture(scope="module")
def with_margins(run):
    return probe_checkpoints(run, list(TEXTS), ProbeSettings(max_margin=True, queries=2))


def test_the_max_margin_part_is_that_of_every_checkpoint(run, with_margins):
    for k, name in enumerate(SHARPNESS):
        alone = probe_model(load_model(run / name), list(TEXTS), ProbeSettings(max_margin=True, queries=2))
        for measure, values in alone.max_margin:
            assert np.array_equal(with_margins.measures[measure][k], values, equal_nan=True), measure
    assert alone.notes[0] in with_margins.notes
    figure = with_margins.draw()
    drawn = {axes.get_title(): axes for axes in figure.axes}
    lines = drawn["correlation of W with the max-margin W"].lines
    assert [line.get_label() for line in lines[2:]] == [
        "baseline: random selections",
        "baseline: random W",
        "baseline: random head",
    ]
    random = with_margins.measures["correlation_random_head"]
    assert np.allclose(lines[-1].get_ydata(), np.nanmean(random, axis=(1, 2)), atol=EXACT)
    assert all(line.get_linestyle() == "--" for line in lines[2:])  # dashed, whatever the dashes
    assert len(drawn["smallest margin over the best"].lines) == 3
    assert with_margins.rows()[2]["correlation: this head"] == with_margins.by_layer("correlation")[2, -1]


def test_heads_without_a_solution_are_left_out_and_counted(run, monkeypatch):
    def without(sample, heads, settings):
        first, *others = layer_margins(sample, heads, settings)
        return (dataclasses.replace(first, own=dataclasses.replace(first.own, correlation=float("nan"))), *others)

    monkeypatch.setattr(run_margins, "layer_margins", without)
    curves = probe_checkpoints(run, list(TEXTS), ProbeSettings(max_margin=True))
    assert np.isnan(curves.measures["correlation"][:, :, 0]).all()
    assert np.array_equal(curves.by_layer("correlation"), curves.measures["correlation"][:, :, 1])
    assert curves.notes[-1].startswith("At 3 of 3 checkpoints some heads, 2 at most, have no max-margin solution")
    assert len([note for note in curves.notes if "no max-margin solution" in note]) == 1


def test_progress_reaches_what_it_promised(run):
    class Counter(Silence):
        said, done = 0, 0

        def expect(self, total):
            self.total, self.said = total, self.said + 1

        def advance(self, units=1):
            self.done += units

    counter = Counter()
    probe_checkpoints(run, list(TEXTS), ProbeSettings(max_margin=True), progress=counter)
    assert counter.done == counter.total == 3 * (len(TEXTS) + 4)
    assert counter.said == 1


def test_curves_are_also_rows_json_and_a_picture(curves):
    rows = curves.rows()
    assert [row["checkpoint"] for row in rows] == list(SHARPNESS)
    assert rows[1]["nnz/T"] == curves.measures["relative_nnz"][1, -1].mean()
    assert curves.rows(0)[1]["nnz/T"] == curves.measures["relative_nnz"][1, 0].mean()
    told = json.loads(json.dumps(curves.to_json(), allow_nan=False))
    assert np.shape(told["measures"]["entropy"]) == (3, 2, 2)
    assert told["trends"]["frobenius"] == [1.0, 1.0]
    page = (Path(__file__).parents[2] / "docs" / "probe.md").read_text(encoding="utf-8")
    assert not [one for one in told if f"`{one}`" not in page]
    figure = curves.draw()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        "nnz/T, all queries",
        "nnz/T, query of the first token",
        "Frobenius norm of W",
        "median logit margin of the selection",
    ]
    line = figure.axes[0].lines[1]
    assert np.array_equal(line.get_ydata(), curves.by_layer("relative_nnz")[:, 1])
    assert np.array_equal(line.get_color(), colormaps["viridis"](0.86))
    assert repr(curves) == "CheckpointCurves(bert, 2 layers of 2 heads: 3 checkpoints, 2 layers, 6 inputs)"


def test_two_checkpoints_of_one_number_are_counted_instead():
    assert _steps([Path("first/epoch-3"), Path("second/epoch-3")]).tolist() == [0.0, 1.0]
    assert _steps([Path("first/epoch-3"), Path("second/epoch-4")]).tolist() == [3.0, 4.0]


def test_a_list_keeps_its_order(run):
    backward = probe_checkpoints([run / "epoch-2", run / "epoch-1"], list(TEXTS))
    assert backward.names == ("epoch-2", "epoch-1")
    assert backward.steps.tolist() == [0.0, 1.0]
    assert np.allclose(backward.trend("relative_nnz"), 1.0, atol=EXACT)


def test_image_models_have_curves_too(tmp_path):
    for epoch, sharpness in enumerate((0.3, 3.0)):
        save(tiny_vit(sharpness=sharpness), tmp_path / f"epoch-{epoch:03d}")
    images = np.random.default_rng(0).integers(0, 256, size=(4, 6, 6), dtype=np.uint8)
    curves = probe_checkpoints(tmp_path, images)
    assert curves.n_inputs == 4
    assert np.allclose(curves.trend("first_relative_nnz"), -1.0, atol=EXACT)


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(InputError, match=r"at least two checkpoints.*which is no folder"):
        checkpoint_folders(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"at least two checkpoints.*got none in"):
        checkpoint_folders(tmp_path)
    with pytest.raises(InputError, match=r"at least two checkpoints.*got 1 of them"):
        probe_checkpoints([run / "epoch-1"], list(TEXTS))


def test_unknown_measures_are_refused(curves):
    with pytest.raises(InputError, match="The 'name' argument must be one of nnz"):
        curves.by_layer("loss")
