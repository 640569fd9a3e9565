"""The folder of a sweep: killed, also on a cluster, damaged, locked, of another plan, on a full disk, interrupted; nothing is lost."""

import os
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest

import marginlens as ml
import tolerances

pytest.importorskip("distributed")

from dask_cluster import DaskCluster
from marginlens.engines.dask import DaskEngine
from sweep_kills import CONNECT_SECONDS, PLAN, POLL_SECONDS, Trials, count_chunks, start

KEYS = {"n_inputs": 2, "n_tokens": 3, "d": [3, 5], "n_steps": 5, "n_problems": 40, "chunk": 8}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return ml.sweep(out=tmp_path_factory.mktemp("sweep") / "made", **KEYS)


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made.folder, tmp_path / "copy"))


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("MARGINLENS_QUIET", "1")


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Sweeps of many small chunks, and the digest of an undisturbed one."""
    return Trials(tmp_path_factory.mktemp("many"))


def begun(trials, name, n_chunks):
    """A sweep in a process of its own that has so many chunks, and its folder."""
    folder = trials.folder / name
    process = start(folder)
    while process.poll() is None and count_chunks(folder) < n_chunks:
        time.sleep(0.001)
    return process, folder


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_table(trials):
    process, folder = begun(trials, "killed", 30)
    process.kill()
    process.communicate()
    status = ml.sweep.status(folder)
    assert 30 <= status.chunks_done < trials.n_chunks
    with pytest.raises(ml.InputError, match=f"is not finished: {trials.n_chunks - status.chunks_done} of "):
        ml.sweep.table(folder)
    assert not status.is_running
    assert "running the same sweep again goes on" in str(status)
    assert ml.sweep.table(folder, partial=True).num_rows == status.problems_done
    assert ml.sweep.summary(folder, partial=True)[0].n_problems == PLAN["n_problems"]
    assert trials.resumed(folder)


@pytest.mark.slow
def test_a_sweep_goes_on_when_a_process_that_computes_for_it_is_killed(trials):
    n_chunks, whole = trials.trial("child", "child")
    assert whole
    assert n_chunks is not None


@pytest.mark.slow
def test_a_second_process_is_refused_and_an_interrupt_keeps_what_is_finished_and_says_how_to_go_on(trials):
    process, folder = begun(trials, "interrupted", 5)
    process.send_signal(signal.SIGSTOP)
    try:
        assert ml.sweep.status(folder).is_running
        with pytest.raises(ml.InputError, match=f"is in use by process {process.pid} on"):
            ml.sweep(PLAN, folder)
        process.send_signal(signal.SIGINT)
    finally:
        process.send_signal(signal.SIGCONT)
    _, error = process.communicate(timeout=tolerances.HANGING)
    assert process.returncode == 130
    assert error.startswith("marginlens: interrupted. ")
    assert "running the same sweep again goes on from there" in error
    assert error.count("\n") == 1
    assert count_chunks(folder) < trials.n_chunks
    assert trials.resumed(folder)


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "cut":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = bytearray()
    elif how == "another chunk":
        content = bytearray(file.with_name("000000.parquet").read_bytes())
    else:
        place = {"page": 40, "middle": len(content) // 2, "footer": len(content) - 30}[how]
        content[place] ^= 0xFF
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["cut", "empty", "page", "middle", "footer", "another chunk"])
def test_a_damaged_chunk_is_named_never_read_and_computed_anew(made, copy, how):
    file = copy / "chunks" / "000007.parquet"
    damage(file, how)
    for read in (ml.sweep.table, ml.sweep.digest, ml.sweep.summary):
        with pytest.raises(ml.InputError, match=r"000007\.parquet' is damaged"):
            read(copy)
    assert ml.sweep.status(copy, check=True).damaged == (str(file),)
    with pytest.warns(UserWarning, match=r"000007\.parquet' is damaged and computed anew"):
        assert ml.sweep(out=copy, **KEYS).digest() == made.digest()


def test_every_flipped_byte_of_a_chunk_is_noticed(copy):
    file = copy / "chunks" / "000003.parquet"
    content = file.read_bytes()
    for place in range(0, len(content), 37):
        changed = bytearray(content)
        changed[place] ^= 0x10
        file.write_bytes(bytes(changed))
        assert ml.sweep.status(copy, check=True).damaged == (str(file),)


def test_a_changed_plan_is_refused_and_says_what_differs(copy):
    with pytest.raises(ml.InputError, match="that of another one: n_steps is 5 there and 6 here instead"):
        ml.sweep(out=copy, **{**KEYS, "n_steps": 6})
    with pytest.raises(ml.InputError, match=r"seed is 0 there and 1 here; chunk is 8 there and 4 here"):
        ml.sweep(out=copy, **{**KEYS, "chunk": 4, "seed": 1})


def test_a_damaged_plan_is_one_sentence(copy):
    content = (copy / "plan.json").read_text()
    for text in (content[:-40], content.replace('"n_steps":5', '"n_steps":6'), "[]"):
        (copy / "plan.json").write_text(text)
        with pytest.raises(ml.InputError, match=r"plan\.json' is damaged"):
            ml.sweep.table(copy)


def test_leftovers_of_writing_are_removed_and_other_files_stay(made, copy):
    (copy / "chunks" / ".000002.parquet.partial").write_bytes(b"half")
    (copy / "notes.txt").write_text("mine")
    (copy / "chunks" / "000002.parquet").unlink()
    assert ml.sweep(out=copy, **KEYS).digest() == made.digest()
    assert sorted(file.name for file in copy.iterdir()) == ["chunks", "lock", "notes.txt", "plan.json"]
    assert len(list((copy / "chunks").iterdir())) == 10


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for place, sentence in (
        ("file", "which is a file"),
        ("full", "a new or empty folder, or that of an earlier sweep"),
        ("file/below", "Not a directory"),
    ):
        with pytest.raises(ml.InputError, match=sentence):
            ml.sweep(out=tmp_path / place, **KEYS)
    with pytest.raises(ml.InputError, match=r"which has no plan\.json"):
        ml.sweep.status(tmp_path)


def test_a_file_that_cannot_be_written_whole_is_one_sentence_and_what_is_there_stays(tmp_path):
    """A limit on the size of files fails a write as a full disk does, here from the chunks of many inputs on."""
    resource = pytest.importorskip("resource")
    keys = {**KEYS, "n_inputs": [1, 60]}
    undisturbed = ml.sweep(out=tmp_path / "undisturbed", **keys)
    sizes = [file.stat().st_size for file in (undisturbed.folder / "chunks").iterdir()]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((min(sizes) + max(sizes)) // 2, limits[1]))
    try:
        with pytest.raises(ml.InputError, match=r"File too large.* free some space and run the same sweep again"):
            ml.sweep(out=tmp_path / "out", **keys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    status = ml.sweep.status(tmp_path / "out", check=True)
    assert not status.damaged
    assert 0 < status.chunks_done < len(sizes)
    assert ml.sweep(out=tmp_path / "out", **keys).digest() == undisturbed.digest()


# ---- on a Dask cluster; `sweep_kills.py` kills more of its workers and schedulers


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The Dask scheduler at .* has no workers yet")
def test_a_sweep_whose_workers_and_scheduler_are_killed_ends_up_as_an_undisturbed_one(tmp_path):
    with DaskCluster(2) as cluster:
        trials = Trials(tmp_path, 1, cluster)
        for name, victim in {"a": "worker", "b": "scheduler", "c": "worker"}.items():
            _, whole = trials.trial(name, victim)
            assert whole, victim


@pytest.mark.slow
def test_a_sweep_that_finds_no_worker_says_so_and_waits_for_one(tmp_path):
    with DaskCluster(0) as cluster:
        engine = DaskEngine.from_scheduler(cluster.address, CONNECT_SECONDS)
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")

            def add_worker_once_warned():
                while not given:
                    time.sleep(POLL_SECONDS)
                cluster.add_worker()

            helper = threading.Thread(target=add_worker_once_warned, daemon=True)
            helper.start()
            made = ml.sweep(PLAN, tmp_path, engine=engine)
            helper.join()
        engine.close()
    assert "has no workers yet; waiting for some" in str(given[0].message)
    assert made.status().is_finished
