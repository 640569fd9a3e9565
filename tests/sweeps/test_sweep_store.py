"""The folder of a sweep: killed, damaged, locked, of another plan, on a full disk, interrupted. One sentence each, and nothing lost."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kill_at_random import PLAN, check_after, chunks, killed, start

import marginlens as ml
import tolerances

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
def many(tmp_path_factory):
    """A plan of many small chunks, and the digest of its undisturbed run."""
    base = tmp_path_factory.mktemp("many")
    plan = base / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    return plan, ml.sweep(plan, base / "undisturbed").digest()


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_table(many, tmp_path):
    plan, digest = many
    there, was_killed = killed(plan, tmp_path / "folder", 30, 0.005)
    assert was_killed
    assert 30 <= there < 100
    with pytest.raises(ml.InputError, match=rf"is not finished: {100 - there} of 100 chunks are missing"):
        ml.sweep.table(tmp_path / "folder")
    status = ml.sweep.status(tmp_path / "folder")
    assert not status.is_running
    assert "running the same sweep again goes on" in str(status)
    assert ml.sweep.table(tmp_path / "folder", partial=True).num_rows == status.problems_done
    assert ml.sweep.summary(tmp_path / "folder", partial=True)[0].n_problems == 500
    check_after(plan, tmp_path / "folder", digest, delays=())


@pytest.mark.slow
def test_a_second_process_is_refused_and_an_interrupt_keeps_what_is_finished_and_says_how_to_go_on(many, tmp_path):
    plan, digest = many
    folder = tmp_path / "folder"
    process = start(plan, folder)
    while process.poll() is None and chunks(folder) < 5:
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)
    try:
        assert ml.sweep.status(folder).is_running
        with pytest.raises(ml.InputError, match=f"is in use by process {process.pid} on"):
            ml.sweep(plan, folder)
        process.send_signal(signal.SIGINT)
    finally:
        process.send_signal(signal.SIGCONT)
    _, error = process.communicate(timeout=tolerances.HANGING)
    assert process.returncode == 130
    assert error.decode().startswith("marginlens: interrupted. ")
    assert "running the same sweep again goes on from there" in error.decode()
    assert error.decode().count("\n") == 1
    assert chunks(folder) < 100
    check_after(plan, folder, digest, delays=())


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


FULL_DISK = """
import subprocess, sys
import marginlens as ml

place, plan, digest = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", place], check=True)
try:
    ml.sweep(plan, place + "/sweep")
    raise SystemExit("it did not fill up")
except ml.InputError as problem:
    print(problem)
status = ml.sweep.status(place + "/sweep", check=True)
assert not status.damaged and 0 < status.chunks_done < 100
subprocess.run(["mount", "-o", "remount,size=50m", place], check=True)
assert ml.sweep(plan, place + "/sweep").digest() == digest
"""


def can_mount(folder):
    """Whether a small file system can be mounted in a namespace of its own, which needs no privileges where the system allows it."""
    if shutil.which("unshare") is None:
        return False
    script = 'mount -t tmpfs -o size=64k tmpfs "$1"'
    return subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", folder], capture_output=True).returncode == 0


def test_a_disk_that_fills_up_is_one_sentence_and_loses_nothing(many, tmp_path):
    if not can_mount(tmp_path):
        pytest.skip("no file system can be mounted here")
    plan, digest = many
    place = tmp_path / "disk"
    place.mkdir()
    command = ["unshare", "-rm", sys.executable, "-c", FULL_DISK, place, plan, digest]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=tolerances.HANGING)
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
    assert "free some space and run the same sweep again to go on" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_file_that_cannot_be_written_whole_is_one_sentence(made, tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(ml.InputError, match="File too large"):
            ml.sweep(out=tmp_path / "out", **KEYS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert chunks(tmp_path / "out") == 0
    assert ml.sweep(out=tmp_path / "out", **KEYS).digest() == made.digest()
