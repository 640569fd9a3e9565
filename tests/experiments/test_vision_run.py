"""`python -m experiments.vision`: training a vision transformer, keeping its run, and what both say of bad input."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from experiments.archive import main as archive
from experiments.vision.__main__ import main as run
from marginlens.errors import InputError
from marginlens_papers.claims.a.vision_runs import VisionRun, vision_run
from marginlens_papers.tables import read_file

SMALL = {
    "width": 8,
    "layers": 1,
    "heads": 2,
    "mlp": 8,
    "epochs": 2,
    "batch": 32,
    "measured": 4,
    "tested": 4,
    "patch": 8,
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(here):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez("c.npz", x_train=x, y_train=np.arange(40) % 10, x_test=x[:20], y_test=np.arange(20) % 10)
    return "c.npz"


def words(*more, **changes):
    return ["c.npz", "--out", "out", "--settings", json.dumps({**SMALL, **changes}), *more]


def test_a_run_writes_one_file_and_prints_progress(file, here, capsys):
    assert run(words()) == 0
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if "compiling" not in line]
    assert "40 images to train on and 20 to test" in lines[0]
    assert [line.split(":")[0] for line in lines[1:4]] == ["epoch 0", "epoch 1", "epoch 2"]
    assert told.out.endswith("All epochs are done.\nWritten to out\n")
    assert [one.name for one in (here / "out").iterdir()] == ["run.json"]
    facts = json.loads((here / "out" / "run.json").read_text())
    assert facts["epochs"] == [0, 1, 2]
    assert np.shape(facts["layers"]["sparsity"]) == (3, 1)
    assert facts["data"]["file"] == "c.npz"
    assert facts["settings"]["seed"] == 0
    assert "transformers" in facts["versions"]
    assert facts["maps"]["labels"] == ["airplane", "automobile", "bird", "cat", "deer", "dog"]
    assert run(words(patch=5)) == 2  # no divisor of the image's width
    assert "patch" in capsys.readouterr().err


def test_a_kept_run_has_no_local_paths(file, here, capsys):
    assert run(words("--checkpoint", str(here / "run.npz"), "--save-models", str(here / "m"), "--save-every", "2")) == 0
    assert (here / "m" / "epoch-002" / "model.safetensors").is_file()
    capsys.readouterr()
    assert archive(["vision", "out", "tiny", "--into", "."]) == 0
    assert "VisionRun(tiny: 2 epochs" in capsys.readouterr().out
    kept = read_file("vision-tiny.json", VisionRun)
    assert asdict(kept.settings) | SMALL == asdict(kept.settings)
    assert str(here) not in (here / "vision-tiny.json").read_text()
    assert kept.facts["command"].startswith("python -m experiments.vision c.npz --settings")
    assert kept.curves.by_layer["norm"].shape == (3, 1)
    with pytest.raises(InputError):
        vision_run("there-is-none")


def test_a_run_that_cannot_be_kept_exits_2_with_one_line(here, capsys):
    (here / "short").mkdir()
    (here / "short" / "run.json").write_text('{"form": "marginlens vision run 1"}')
    for folder, name, said in (("none", "tiny", "folder"), ("short", "tiny", "folder"), ("short", "../tiny", "name")):
        assert archive(["vision", folder, name]) == 2
        assert f"The '{said}' argument must be" in capsys.readouterr().err
