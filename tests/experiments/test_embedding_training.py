"""What every training run must satisfy, whatever the model: it stops anywhere, goes on bit for bit, and refuses other settings."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.embeddings import train
from experiments.embeddings.settings import TrainingSettings
from experiments.embeddings.torch_models import DeviceOneLayer
from experiments.embeddings.train import RankCorrelations, evaluate, train_embeddings
from experiments.training.loop import Callbacks, Ending
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens_papers.claims.b.one_layer import train_one_layer
from marginlens_papers.claims.b.outputs import one_layer_outputs, two_layer_outputs
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS

LAW = Levels(deltas=(0.3, 0.1), sizes=(6, 9), n_irrelevant=20, share=0.4)
MODELS = ["compiled", "torch", "two layers"]
STILL, MOVED = 1e-14, 1e-9  # a rate at which nothing moves but by rounding, and how far that may be seen


@pytest.fixture
def data():
    whole = level_sequences(150, 16, 0, LAW)
    rng = np.random.default_rng(1)
    return LabelledSequences([whole[i][0][: rng.integers(1, 17)] for i in range(150)], whole.y, LAW.n_vocabulary)


@pytest.fixture(params=MODELS)
def settings(request, monkeypatch):
    if request.param == "torch":  # the one-layer model as it runs on a GPU
        monkeypatch.setattr(train, "model_of", DeviceOneLayer)
    return TrainingSettings(2 if request.param == "two layers" else 1, 12, 4, 32, milestones=(1, 3), seed=3)


def same(one, other):
    arrays = (vars(one.parameters).values(), vars(other.parameters).values())
    equal = all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))
    histories = [[(record.loss, record.correlation_v) for record in run.history] for run in (one, other)]
    return equal and repr(histories[0]) == repr(histories[1]) and one.loss == other.loss


@pytest.mark.statement("B App. E")
def test_the_loss_falls_and_the_rate_follows_the_milestones(data, settings):
    run = train_embeddings(data, settings)
    assert run.ending is Ending.FINISHED
    assert [record.epoch for record in run.history] == [1, 2, 3, 4]
    assert run.loss < run.history[0].loss
    assert run.accuracy > 0.6
    assert [settings.rate(k) for k in range(4)] == pytest.approx([1e-2, 1e-3, 1e-3, 1e-4], rel=SIX_DIGITS, abs=ROUNDING)
    assert run.parameters.E.dtype == np.float32


def test_a_run_with_a_tiny_rate_records_its_start(data, settings, monkeypatch):
    monkeypatch.setattr(train, "RankCorrelations", lambda known: RankCorrelations(known, at_least=10))
    still = {**settings.to_dict(), "epochs": 1, "learning_rate": STILL, "dtype": "float64"}
    run, wide = (
        train_embeddings(data, TrainingSettings.from_dict({**still, "spread": spread})) for spread in (1.0, 3.0)
    )
    assert run.history[0].loss == pytest.approx(run.loss, rel=MOVED, abs=ROUNDING)
    ranks = RankCorrelations(run.statistics, at_least=10)(run.a, run.b)
    assert (run.history[0].correlation_v, run.history[0].correlation_p) == pytest.approx(ranks, rel=MOVED, abs=ROUNDING)
    assert np.abs(wide.parameters.E - 3.0 * run.parameters.E).max() < MOVED
    if settings.layers == 1:
        margins = [y * attended(run, ids) for ids, y in (data[i] for i in range(len(data)))]
        assert run.loss == pytest.approx(np.mean(np.log1p(np.exp(-np.array(margins)))), rel=MOVED, abs=ROUNDING)
        assert run.accuracy == np.mean(np.array(margins) > 0.0)


def test_training_has_the_bits_of_the_claims_loop(data):
    settings = TrainingSettings(1, 12, 4, 32, milestones=(1, 3), seed=3)
    run, plain = train_embeddings(data, settings), train_one_layer(data, settings)
    for one, other in zip(vars(run.parameters).values(), vars(plain.parameters).values(), strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(run.a, plain.a)
    assert run.loss == plain.loss


def attended(run, ids):
    """f of one sequence, by the run's two products."""
    q = np.exp(run.a[ids] - run.a[ids].max())
    return q @ run.b[ids] / q.sum()


def test_held_out_sequences_are_measured_and_change_nothing(data, settings):
    train, held_out = data.take(np.arange(110)), data.take(np.arange(110, 150))
    settings = TrainingSettings.from_dict({**settings.to_dict(), "dtype": "float64"})
    run, plain = train_embeddings(train, settings, held_out=held_out), train_embeddings(train, settings)
    assert same(run, plain)
    assert np.isnan([plain.held_out_loss, plain.held_out_accuracy, plain.history[0].held_out_loss]).all()
    alike = train_embeddings(train, settings, held_out=train)
    assert (alike.held_out_loss, alike.held_out_accuracy) == (alike.loss, alike.accuracy)
    assert run.history[-1].held_out_loss == run.held_out_loss != run.loss
    assert 0.0 <= run.held_out_accuracy <= 1.0
    if settings.layers == 1:
        margins = np.array([y * attended(run, ids) for ids, y in (held_out[i] for i in range(40))])
        assert run.held_out_loss == pytest.approx(np.mean(np.log1p(np.exp(-margins))), rel=MOVED, abs=ROUNDING)
        assert run.held_out_accuracy == np.mean(margins > 0.0)


@pytest.mark.statement("B App. E")
def test_the_defaults_are_the_papers_for_reviews():
    defaults = TrainingSettings().to_dict()
    stated = {"epochs": 500, "batch": 128, "learning_rate": 0.01, "weight_decay": 1e-8, "milestones": [100, 200]}
    assert {name: defaults[name] for name in stated} == stated
    assert (defaults["d_model"], defaults["train_v"], defaults["spread"]) == (2048, True, 1.0)
    assert [TrainingSettings().rate(k) for k in (99, 100, 200)] == pytest.approx(
        [1e-2, 1e-3, 1e-4], rel=SIX_DIGITS, abs=ROUNDING
    )


def test_a_run_stopped_after_every_step_has_the_same_bits(data, settings, tmp_path):
    whole = train_embeddings(data, settings)
    n_steps = settings.epochs * -(-len(data) // settings.batch)
    endings = []
    for _ in range(2 * n_steps):
        run = train_embeddings(data, settings, checkpoint=tmp_path / "kept.npz", time_limit=1e-9)
        endings.append(run.ending)
        if run.ending is Ending.FINISHED:
            break
    assert endings[-1] is Ending.FINISHED
    assert len(endings) > 4 * (150 // 32)
    assert same(run, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]


def test_a_checkpoint_that_lacks_an_array_is_refused(data, settings, tmp_path):
    place = tmp_path / "kept.npz"
    train_embeddings(data, settings, checkpoint=place)
    with np.load(place) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "m_E"}
    for damaged in (arrays, {**arrays, "m_E": np.ones((1, 12))}):
        np.savez(place, **damaged)
        with refused("checkpoint"):
            train_embeddings(data, settings, checkpoint=place)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_a_nan_loss_ends_the_run(data, settings):
    run = train_embeddings(data, replace(settings, learning_rate=1e30, epochs=50))
    assert run.ending is Ending.DIVERGED
    assert len(run.history) < 50
    assert np.isfinite([record.loss for record in run.history]).all()


def test_a_reported_checkpoint_is_not_changed_by_later_steps(data, settings, tmp_path):
    saved = []
    whole = train_embeddings(
        data, settings, checkpoint=tmp_path / "c.npz", every=1, callback=Callbacks(saved=saved.append)
    )
    assert [len(run.history) for run in saved] == [0, 1, 2, 3]
    assert {run.ending for run in saved} == {Ending.UNFINISHED}
    assert same(saved[2], train_embeddings(data, replace(settings, epochs=2)))
    assert same(whole, train_embeddings(data, settings))


def test_the_result_is_written_as_a_table_and_facts(data, settings, tmp_path):
    run = train_embeddings(data, settings)
    run.write(tmp_path / "out", names=[f"word{s}" for s in range(50)], facts={"command": "none"})
    lines = (tmp_path / "out" / "tokens.csv").read_text().splitlines()
    assert lines[0] == "id,token,a,b,alpha,posterior_difference,count"
    assert len(lines) == 51
    row = lines[8].split(",")
    assert row[:2] == ["7", "word7"]
    E, p, v = (one.astype(float) for one in vars(run.parameters).values())
    assert [float(row[2]), float(row[3])] == pytest.approx([E[7] @ p, E[7] @ v], rel=1e-6, abs=ROUNDING)
    assert int(row[6]) == np.sum(data.tokens == 7)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["ending"] == "FINISHED"
    assert TrainingSettings.from_dict(facts["settings"]) == settings
    assert facts["history"]["loss"] == [record.loss for record in run.history]
    assert facts["command"] == "none"


def test_rank_correlations_equal_scipys(data):
    from scipy.stats import spearmanr

    run = train_embeddings(data, TrainingSettings(1, 12, 3, 32))
    frequent = run.statistics.count >= 10
    ranks = RankCorrelations(run.statistics, at_least=10)(run.a, run.b)
    difference = run.statistics.posterior_difference[frequent]
    assert ranks[0] == pytest.approx(spearmanr(difference, run.b[frequent]).statistic, abs=1e-12, rel=0.0)
    assert ranks[1] == pytest.approx(spearmanr(np.abs(difference), run.a[frequent]).statistic, abs=1e-12, rel=0.0)
    assert np.isnan(RankCorrelations(run.statistics, at_least=10**6)(run.a, run.b)).all()


FLOAT32 = 1e-4  # how far outputs of sizes about one may be apart in single precision


@pytest.mark.parametrize("layers", [1, 2])
def test_held_out_measures_follow_the_papers_formulas(data, layers):
    seen, new = data.take(np.arange(110)), data.take(np.arange(110, 150))
    run = train_embeddings(seen, TrainingSettings(layers, 8, 3, 16, learning_rate=0.05), held_out=new)
    model = vars(run.parameters).values()
    for sequences, expected in ((new, (run.held_out_loss, run.held_out_accuracy)), (seen, (run.loss, run.accuracy))):
        found = evaluate({1: one_layer_outputs, 2: two_layer_outputs}[layers](*model, sequences), sequences)
        assert found == pytest.approx(expected, abs=FLOAT32, rel=0.0)
