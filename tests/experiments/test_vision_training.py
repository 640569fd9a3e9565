"""Training a vision transformer: going on where it stopped, what cannot be used, and how images are altered."""

import numpy as np
import pytest
import torch

from experiments.training.checkpoint import Checkpoint
from experiments.training.loop import Callbacks, Ending
from experiments.vision.settings import VisionTrainingSettings
from experiments.vision.training import DeviceVision, train_vision
from marginlens_papers.claims.a import vision_training
from marginlens_papers.claims.a.cls_attention import ClsAttention
from marginlens_papers.claims.a.vision_training import LabelledImages
from refusals import refused
from tolerances import ROUNDING

SINGLE = 1e-6  # float32 weights, read twice, and pixels of order one

TINY = {"width": 8, "layers": 2, "heads": 2, "mlp": 8, "patch": 4, "batch": 16, "measured": 8, "tested": 8}


@pytest.fixture
def images():
    """Images of three classes that differ in their brightest quarter."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = rng.integers(0, 60, (60, 8, 8, 1), dtype=np.uint8)
    for k, (row, column) in enumerate(((0, 0), (0, 4), (4, 0))):
        x[y == k, row : row + 4, column : column + 4] += 150
    return LabelledImages("quarters", x[:50], y[:50], x[50:], y[50:], ("a", "b", "c"))


def settings(**changes):
    return VisionTrainingSettings(**{**TINY, "epochs": 3, "optimiser": "adamw", "crop": 1, "flip": True, **changes})


def same_run(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    for name in ("sparsity", "norm"):
        assert np.array_equal(one.curves.by_layer[name], other.curves.by_layer[name])
    for name in ("loss", "train_accuracy", "test_accuracy"):
        assert np.array_equal(one.curves.scalars[name], other.curves.scalars[name], equal_nan=True)
    assert one.curves.map_epochs == other.curves.map_epochs
    assert np.array_equal(one.curves.maps, other.curves.maps)


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_a_run_stopped_after_any_step_resumes_with_the_same_bits(images, tmp_path, optimiser):
    chosen = settings(optimiser=optimiser, warmup=5, clip=0.5)
    whole = train_vision(images, chosen)
    assert whole.ending is Ending.FINISHED
    file, saved = tmp_path / "run.npz", []
    for step in range(1, 7):  # into the second epoch, of four steps
        stopped = train_vision(images, chosen, checkpoint=file, time_limit=1e-9)
        assert (stopped.ending, stopped.curves.epochs.tolist()) == (Ending.TIME_LIMIT, [0.0, 1.0][: 1 + step // 4])
    checkpoint = Checkpoint.read(file, "vision")
    assert (checkpoint.epoch, checkpoint.step_index, len(checkpoint.history)) == (1, 2, 2)
    assert checkpoint.values["loss"] > 0.0
    same_run(train_vision(images, chosen, checkpoint=file, every=1, callback=Callbacks(saved=saved.append)), whole)
    assert [(int(run.curves.epochs[-1]), run.ending) for run in saved] == [(k, Ending.UNFINISHED) for k in (1, 2)]
    assert [run.curves.map_epochs for run in saved] == [(0, 1), (0, 1, 2)]
    longer = train_vision(images, settings(optimiser=optimiser, warmup=5, clip=0.5, epochs=4), checkpoint=file)
    assert len(longer.curves.epochs) == 5
    assert np.array_equal(longer.curves.by_layer["norm"][:4], whole.curves.by_layer["norm"])


def test_a_run_with_other_settings_images_or_arrays_cannot_resume(images, tmp_path):
    file = tmp_path / "run.npz"
    train_vision(images, settings(epochs=1), checkpoint=file)
    other = LabelledImages("o", images.x_train[::-1], images.y_train, images.x_test, images.y_test, images.classes)
    saved = Checkpoint.read(file, "vision")
    damaged = [
        next(name for name in saved.arrays if name.startswith(prefix) and saved.arrays[name].ndim == 2)
        for prefix in ("weight/", "moment/exp_avg/")
    ]
    for given, rate, name in ((images, 0.01, None), (other, 0.003, None), *((images, 0.003, name) for name in damaged)):
        if name is not None:  # which would be repeated for every row
            arrays = {**saved.arrays, name: saved.arrays[name][:1]}
            Checkpoint(**{**vars(saved), "arrays": arrays}).write(file, "vision")
        with refused("checkpoint"):
            train_vision(given, settings(learning_rate=rate), checkpoint=file)


def test_measuring_changes_nothing_in_training(images, monkeypatch):
    whole = train_vision(images, settings())
    flat = ClsAttention(np.ones(2), np.ones(2), np.ones(2), np.full((3, 4), 0.25))
    monkeypatch.setattr(vision_training, "cls_attention", lambda *arguments: flat)
    monkeypatch.setattr(vision_training, "key_query_norms", lambda model: (np.ones(2), np.ones(2)))
    unmeasured = train_vision(images, settings())
    assert all(map(torch.equal, whole.model.parameters(), unmeasured.model.parameters()))


def test_training_has_the_bits_of_the_claims_loop(images):
    plain = settings(crop=0, flip=False)
    same_run(train_vision(images, plain), vision_training.train_vision(images, plain))


def test_learning_shows_in_loss_and_accuracy(images):
    """One start in three learns within a few epochs, whatever the machine draws: a single one may take longer."""
    plain = {"epochs": 16, "learning_rate": 0.005, "crop": 0, "flip": False, "spread": 0.2}
    runs = [train_vision(images, settings(**plain, seed=seed)) for seed in range(3)]
    losses = [run.curves.scalars["loss"] for run in runs]
    assert np.isnan([loss[0] for loss in losses]).all()
    assert min(loss[-1] / loss[1] for loss in losses) < 0.5
    assert max(run.accuracy for run in runs) > 0.5  # of three classes


def test_models_are_saved_as_transformers_reads_them(images, tmp_path):
    from transformers import ViTForImageClassification

    run = train_vision(images, settings(), save_models=(tmp_path, 3))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["epoch-000", "epoch-003"]
    found = ViTForImageClassification.from_pretrained(tmp_path / "epoch-003", local_files_only=True)
    mine, theirs = run.model.state_dict(), found.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert found.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert (tmp_path / "epoch-003" / "preprocessor_config.json").is_file()


def test_a_probe_of_saved_models_equals_the_recorded_run(images, tmp_path):
    from marginlens.probe.models.loading import as_inputs, load_model
    from marginlens.probe.run import probe_checkpoints

    run = train_vision(images, settings(spread=0.5), save_models=(tmp_path, 1))
    found = probe_checkpoints(tmp_path, images.x_test[:8])
    assert found.steps.tolist() == run.curves.epochs.tolist()
    norms = np.sqrt((found.measures["frobenius"] ** 2).sum(axis=-1))
    assert norms == pytest.approx(run.curves.by_layer["norm"], rel=SINGLE, abs=ROUNDING)
    read = as_inputs(load_model(tmp_path / "epoch-003"), images.x_test[:8]).pixel_values
    mine = pixels_of(images).scaled(torch.from_numpy(images.x_test[:8]).permute(0, 3, 1, 2)).numpy()
    assert read == pytest.approx(mine, abs=SINGLE, rel=0.0)


# ---- images on the device


def pixels_of(images, **changes):
    training = DeviceVision(images, settings(**{"batch": 50, **changes}))
    training.order = torch.arange(50)
    return training


def test_images_are_shifted_with_zero_padding_and_mirrored_half_the_time(images):
    pixels = pixels_of(images, crop=2, flip=True)
    plain, _ = pixels_of(images, crop=0, flip=False).minibatch(0, 0)
    altered, labels = pixels.minibatch(0, 0)
    again, _ = pixels.minibatch(0, 0)
    other, _ = pixels.minibatch(1, 0)
    assert torch.equal(altered, again)
    assert not torch.equal(altered, other)
    assert labels.tolist() == images.y_train.tolist()
    around = torch.nn.functional.pad(plain, (2, 2, 2, 2))
    shifts, mirrors = set(), 0
    for one, base in zip(altered, around, strict=True):
        found = [
            (row, column, mirror)
            for mirror in (False, True)
            for row in range(5)
            for column in range(5)
            if torch.equal(one, _cut(base, row, column, mirror))
        ]
        assert len(found) == 1
        shifts.add(found[0][:2])
        mirrors += found[0][2]
    assert len(shifts) > 12  # of 25
    assert all({shift[axis] for shift in shifts} == set(range(5)) for axis in (0, 1))  # from one end to the other
    assert 10 < mirrors < 40


def _cut(base, row, column, mirror):
    part = base[:, row : row + 8, column : column + 8]
    return part.flip(-1) if mirror else part
