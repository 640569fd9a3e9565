"""The folder of a sweep: damaged, of another plan, on a full disk; nothing is lost."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

import marginlens as ml
from marginlens.sweeps import Sweep
from marginlens.sweeps.plan import plan_hash
from refusals import raised, refused

KEYS = {"n_inputs": 2, "n_tokens": 3, "d": [3, 5], "n_steps": 5, "n_problems": 40, "chunk": 8}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return ml.sweep(KEYS, tmp_path_factory.mktemp("sweep") / "made")


@pytest.fixture
def copy(made, tmp_path):
    return Path(shutil.copytree(made.folder, tmp_path / "copy"))


def test_an_unfinished_sweep_is_refused_unless_partial_is_requested(made, copy):
    for index in (1, 4, 5):
        (copy / "chunks" / f"{index:06d}.parquet").unlink()
    sweep = Sweep.open(copy)
    assert (sweep.status().chunks_done, sweep.status().n_chunks) == (7, 10)
    with raised(ml.InputError, "3 of 10", "partial=True"):
        sweep.table()
    assert "running the same sweep again goes on" in str(sweep.status())
    assert sweep.table(partial=True).num_rows == sweep.status().problems_done == 7 * 8
    assert sweep.summary(partial=True)[0].n_problems == 40 - 2 * 8
    assert ml.sweep(KEYS, copy).digest() == made.digest()


def damage(file, how):
    content = bytearray(file.read_bytes())
    if how == "cut":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = bytearray()
    elif how == "another chunk":
        content = bytearray(file.with_name("000000.parquet").read_bytes())
    else:
        content[last_bytes(file)[how]] ^= 0x10
    file.write_bytes(bytes(content))


def last_bytes(file):
    """Column -> the last byte of its data."""
    group = pyarrow.parquet.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(k) for k in range(group.num_columns)]
    first = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return {
        column.path_in_schema: begin + column.total_compressed_size - 1
        for column, begin in zip(columns, first, strict=True)
    }


@pytest.mark.parametrize("how", ["cut", "empty", "problem", "norm", "optimality", "another chunk"])
def test_a_damaged_chunk_is_named_and_recomputed_after_deletion(made, copy, how):
    file = copy / "chunks" / "000007.parquet"
    damage(file, how)
    for read in (Sweep.table, Sweep.digest):
        with raised(ml.InputError, "000007.parquet"):
            read(Sweep.open(copy))
    file.unlink()
    assert ml.sweep(KEYS, copy).digest() == made.digest()


# ---- folders of earlier versions

EARLIER_KEYS = {
    "n_inputs": 2,
    "n_tokens": 3,
    "d": [3, 5],
    "n_steps": 5,
    "n_problems": 12,
    "chunk": 4,
    "loss": "correlation",
    "optimizer": "sign",
    "record": ["norm", "optimality"],
}
# What a version with plans in TOML files and engines wrote, word for word.
EARLIER_PLAN = """{
"hash": "fbdc118a673d1c2c5a79b3f6a14d7b56020328168e1aa7dad7ee3d36a8cbb593",
"plan": {"format":"marginlens-sweep-1","n_problems":12,"problem":"selection","data":"sphere","n_inputs":2,"n_tokens":3,"d":[3,5],"loss":"correlation","optimizer":"sign","step":null,"start":"zero","n_steps":5,"seed":0,"record":["norm","optimality"],"measures":{},"saved_steps":[],"parameters":{},"device":"cpu","chunk":4},
"begun_with": {"python":"3.11.7","marginlens":"0.1.0","pyarrow":"26.0.1","machine":"Linux x86_64, 2 processors"}
}
"""  # noqa: E501


def write_earlier(folder, tables):
    """A folder as earlier versions wrote it: a checksum of the whole file among the metadata of a chunk."""
    (folder / "chunks").mkdir(parents=True)
    (folder / "plan.json").write_text(EARLIER_PLAN)
    (folder / "lock").write_bytes(b"")
    for index, table in tables.items():
        about = {"format": "marginlens-sweep-1", "plan": json.loads(EARLIER_PLAN)["hash"], "chunk": index}
        about |= {"cell": index // 3, "number": index % 3, "checksum": "sha256=" + "0" * 64}
        table = table.replace_schema_metadata({b"marginlens": json.dumps(about).encode()})
        words = ["optimality"]
        place = folder / "chunks" / f"{index:06d}.parquet"
        pyarrow.parquet.write_table(table, place, compression="zstd", use_dictionary=words, write_statistics=False)


def test_a_folder_of_an_earlier_version_can_be_resumed(tmp_path):
    today = ml.sweep(EARLIER_KEYS, tmp_path / "today")
    tables = {index: today.read(index) for index in today.listed()}
    write_earlier(tmp_path / "whole", tables)
    opened = Sweep.open(tmp_path / "whole")
    assert opened.status().is_finished
    assert opened.table().equals(today.table())
    assert opened.summary()[0].columns["optimality"].counts == today.summary()[0].columns["optimality"].counts
    assert opened.problem(13).data == today.problem(13).data
    assert opened.digest() == today.digest()
    write_earlier(tmp_path / "begun", {index: tables[index] for index in (0, 1, 4)})
    earlier = (tmp_path / "begun" / "chunks" / "000001.parquet").read_bytes()
    assert ml.sweep(EARLIER_KEYS, tmp_path / "begun").digest() == today.digest()
    assert (tmp_path / "begun" / "chunks" / "000001.parquet").read_bytes() == earlier


def test_a_folder_of_unknown_format_is_refused(tmp_path, copy):
    plan = {**json.loads(EARLIER_PLAN)["plan"], "format": "marginlens-sweep-0"}
    (copy / "plan.json").write_text(json.dumps({"hash": plan_hash(plan), "plan": plan}))
    for use in (lambda: Sweep.open(copy).table(), lambda: ml.sweep(KEYS, copy)):
        with refused("folder"):
            use()


def test_a_changed_plan_is_refused_with_the_difference(copy):
    with refused("folder"):
        ml.sweep({**KEYS, "n_steps": 6}, copy)
    with refused("folder"):
        ml.sweep({**KEYS, "chunk": 4, "seed": 1}, copy)


def of_scale(rng, n_problems, cell):
    if cell["scale"] > 2:
        raise ml.InputError("This scale is too large.")
    return ml.data.sphere_tokens(n_problems, 2, 3, 4, rng)


def test_a_plan_that_could_not_run_leaves_its_folder_free(tmp_path):
    keys = {"data": of_scale, "n_problems": 9, "n_steps": 4}
    with refused("data"):
        ml.sweep({**keys, "parameters": {"scale": 5}}, tmp_path / "made")
    mended = ml.sweep({**keys, "parameters": {"scale": 1}}, tmp_path / "made")
    assert mended.status().is_finished
    assert Sweep.open(tmp_path / "made").digest() == mended.digest()
    with refused("folder"):
        ml.sweep({**keys, "parameters": {"scale": 2}}, tmp_path / "made")


def test_a_start_of_another_length_is_refused_before_the_folder_is_made(tmp_path):
    with refused("start"):
        ml.sweep({**KEYS, "start": [1.0, -2.0, 0.5]}, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_damaged_plan_is_refused(copy):
    content = (copy / "plan.json").read_text()
    for text in (content[:-40], content.replace('"n_steps":5', '"n_steps":6'), "[]"):
        (copy / "plan.json").write_text(text)
        with refused("folder"):
            Sweep.open(copy).table()


def test_partial_files_are_removed_and_others_kept(made, copy):
    (copy / "chunks" / ".000002.parquet.partial").write_bytes(b"half")
    (copy / "notes.txt").write_text("mine")
    (copy / "chunks" / "000002.parquet").unlink()
    assert ml.sweep(KEYS, copy).digest() == made.digest()
    assert sorted(file.name for file in copy.iterdir()) == ["chunks", "lock", "notes.txt", "plan.json"]
    assert len(list((copy / "chunks").iterdir())) == 10


def test_an_unusable_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    for place in ("file", "full", "file/below"):
        with refused("folder"):
            ml.sweep(KEYS, tmp_path / place)
    with refused("folder"):
        Sweep.open(tmp_path).status()


def test_a_failed_write_is_reported_and_keeps_existing_files(tmp_path):
    """A limit on the size of files fails a write as a full disk does, here from the chunks of many inputs on."""
    resource = pytest.importorskip("resource")
    keys = {**KEYS, "n_inputs": [1, 60]}
    undisturbed = ml.sweep(keys, tmp_path / "undisturbed")
    sizes = [file.stat().st_size for file in (undisturbed.folder / "chunks").iterdir()]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((min(sizes) + max(sizes)) // 2, limits[1]))
    try:
        with refused("folder"):
            ml.sweep(keys, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    status = Sweep.open(tmp_path / "out").status()
    assert Sweep.open(tmp_path / "out").table(partial=True).num_rows == status.problems_done
    assert 0 < status.chunks_done < len(sizes)
    assert ml.sweep(keys, tmp_path / "out").digest() == undisturbed.digest()
