"""`python -m experiments.embeddings`: training as a command, its settings, killed, out of space, stopped by a time limit, resumed."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from experiments.archive import archive_run
from experiments.embeddings.__main__ import main
from experiments.embeddings.settings import TrainingSettings
from marginlens.data.files import read_labelled, write_labelled
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens_papers.claims.b.embedding_runs import EmbeddingRun
from marginlens_papers.tables import read_file
from tolerances import ROUNDING

LAW = Levels(deltas=(0.2,), sizes=(4,), n_irrelevant=6, share=0.5)
SMALL = json.dumps({"d_model": 8, "epochs": 3, "batch": 16})


@pytest.fixture
def encoded(tmp_path):
    data = level_sequences(60, 9, 0, LAW)
    write_labelled(tmp_path / "data.npz", data, [f"t{s}" for s in range(14)])
    return tmp_path / "data.npz"


def test_the_command_trains_writes_and_resumes(encoded, tmp_path, capsys):
    common = [str(encoded), "--settings", SMALL, "--checkpoint", str(tmp_path / "kept.npz")]
    assert main([*common, "--out", str(tmp_path / "a"), "--time-limit", "1e-9"]) == 0
    assert "time limit" in capsys.readouterr().out
    assert json.loads((tmp_path / "a" / "run.json").read_text())["ending"] == "TIME_LIMIT"
    assert main([*common, "--out", str(tmp_path / "b")]) == 0
    assert "epoch 3: loss" in capsys.readouterr().err
    assert main([str(encoded), "--settings", SMALL, "--out", str(tmp_path / "c")]) == 0
    assert (tmp_path / "b" / "tokens.csv").read_bytes() == (tmp_path / "c" / "tokens.csv").read_bytes()
    facts = json.loads((tmp_path / "b" / "run.json").read_text())
    assert facts["epochs_done"] == 3
    assert facts["command"] == f"python -m experiments.embeddings data.npz --settings '{SMALL}' --every 50"
    assert facts["versions"]["numpy"] == np.__version__


def test_the_command_measures_and_keeps_a_held_out_part(encoded, tmp_path, capsys):
    data, _ = read_labelled(encoded)
    write_labelled(encoded, data, split=["train"] * 40 + ["held-out"] * 20)
    given = [str(encoded), "--split", "train", "--held-out", "held-out", "--settings", SMALL]
    assert main([*given, "--out", str(tmp_path / "out")]) == 0
    assert "held out: loss" in capsys.readouterr().out
    run = read_file(archive_run(tmp_path / "out", "x", data=encoded, into=tmp_path), EmbeddingRun)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run.held_out_loss == facts["held_out_loss"] > 0.0
    assert run.held_out_accuracy == facts["held_out_accuracy"]
    assert run.facts["held_out_sequences"] == 20
    assert run.curves["held_out_loss"][-1] == pytest.approx(run.held_out_loss, rel=1e-4, abs=ROUNDING)


def test_the_command_keeps_its_time_limit_with_one_step_an_epoch(encoded, tmp_path, capsys):
    whole_batches = json.dumps({"d_model": 8, "epochs": 30, "batch": 60})
    common = [str(encoded), "--settings", whole_batches, "--out", str(tmp_path / "a")]
    assert main([*common, "--time-limit", "0.001"]) == 1  # nothing holds where to go on
    assert json.loads((tmp_path / "a" / "run.json").read_text())["epochs_done"] == 1
    assert main([*common, "--time-limit", "0.001", "--checkpoint", str(tmp_path / "c.npz")]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["--list-settings"])  # which needs no file
    assert ended.value.code == 0
    assert "milestones = [100, 200]: epochs after which" in capsys.readouterr().out
    for option, value in (("every", "0"), ("device", "gpu"), ("checkpoint", "no/such/file")):
        assert main([*common, f"--{option}", value]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"marginlens: The '{option}' argument must be ")


KILLED = """
import os, signal, sys
import numpy as np
from experiments.embeddings.__main__ import main

save, saves = np.savez, []

def killed_while_writing(stream, **arrays):
    saves.append(1)
    if len(saves) == 3:  # before the first step, after epoch 1, after epoch 2
        stream.write(b"half")
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    save(stream, **arrays)

np.savez = killed_while_writing
sys.exit(main())
"""
OUT_OF_SPACE = """
import resource, sys
from experiments.embeddings.__main__ import main

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # bytes of a file: less than a checkpoint takes
sys.exit(main())
"""


def in_a_process(code, words):
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)


@pytest.mark.posix("SIGKILL")
def test_a_process_killed_while_saving_leaves_a_resumable_run(encoded, tmp_path):
    words = [str(encoded), "--settings", SMALL, "--every", "1"]
    resumed = [*words, "--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c.npz")]
    assert in_a_process(KILLED, resumed).returncode == -signal.SIGKILL
    so_far = json.loads((tmp_path / "a" / "run.json").read_text())
    assert (so_far["ending"], so_far["epochs_done"]) == ("UNFINISHED", 1)
    assert (
        json.loads(archive_run(tmp_path / "a", "x", data=encoded, into=tmp_path).read_text())["ending"] == "UNFINISHED"
    )
    assert main(resumed) == 0
    assert main([*words, "--out", str(tmp_path / "b")]) == 0  # never stopped
    assert (tmp_path / "a" / "tokens.csv").read_bytes() == (tmp_path / "b" / "tokens.csv").read_bytes()


@pytest.mark.posix("limit on the size of files")
def test_a_full_disk_keeps_the_earlier_checkpoint(encoded, tmp_path):
    words = [str(encoded), "--out", str(tmp_path / "a"), "--checkpoint", str(tmp_path / "c.npz")]
    assert main([*words, "--settings", SMALL]) == 0
    before = (tmp_path / "c.npz").read_bytes()
    longer = [*words, "--settings", json.dumps({**json.loads(SMALL), "epochs": 5})]
    failed = in_a_process(OUT_OF_SPACE, longer)
    assert failed.returncode == 2
    assert "'checkpoint'" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert (tmp_path / "c.npz").read_bytes() == before
    assert not list(tmp_path.glob(".*"))
    assert main(longer) == 0


def test_a_diverging_run_exits_with_an_error(encoded, tmp_path, capsys):
    wild = json.dumps({"d_model": 8, "epochs": 40, "batch": 16, "learning_rate": 1e30})
    assert main([str(encoded), "--settings", wild, "--out", str(tmp_path / "a")]) == 1
    assert "no longer a finite number" in capsys.readouterr().out


def test_settings_come_from_options_assignments_and_a_file(encoded, tmp_path):
    (tmp_path / "s.json").write_text(json.dumps({"d_model": 8, "batch": 16, "seed": 3}))
    given = [str(encoded), "--settings", str(tmp_path / "s.json"), "--set", "milestones=1,2", "--set", "train_v=false"]
    assert main([*given, "--epochs", "1", "--seed", "4", "--out", str(tmp_path / "o")]) == 0
    expected = TrainingSettings(d_model=8, batch=16, seed=4, epochs=1, milestones=(1, 2), train_v=False)
    assert TrainingSettings.from_dict(json.loads((tmp_path / "o" / "run.json").read_text())["settings"]) == expected
