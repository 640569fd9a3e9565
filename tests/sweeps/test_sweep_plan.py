"""Plans: grids in their documented order, one sentence for whatever is wrong, and a hash of all that results depend on."""

import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import marginlens as ml
from marginlens.cli.app import app
from marginlens.sweeps import Plan
from marginlens.sweeps.grid import AXES, Grid

SHAPE = {"n_inputs": 2, "n_tokens": 3, "d": 4}


def plan(**keys):
    return Plan.of({**SHAPE, "n_problems": 10, **keys})


def axis(values):
    return st.lists(values, min_size=1, max_size=3, unique=True)


@settings(deadline=None, max_examples=30)
@given(
    n_tokens=axis(st.integers(2, 6)),
    d=axis(st.integers(1, 600)),
    loss=axis(st.sampled_from(["logistic", "exponential", "correlation"])),
    step=axis(st.floats(0.001, 3.0)),
    n_problems=st.integers(1, 10**8),
    chunk=st.none() | st.integers(1, 10**6),
)
def test_every_problem_of_every_cell_is_in_one_chunk(n_tokens, d, loss, step, n_problems, chunk):
    made = plan(n_tokens=n_tokens, d=d, loss=loss, step=step, n_problems=n_problems, chunk=chunk)
    grid = made.grid
    axes = [cell.axes for cell in grid.cells]
    assert [tuple(cell.values()) for cell in axes] == list(itertools.product(n_tokens, d, loss, step))
    assert [name for name in AXES if name in axes[0]] == list(axes[0])
    for cell in range(len(grid.cells)):
        chunks = grid.chunks_of(cell)
        ends = [grid.chunk_at(index) for index in {chunks[0], chunks[len(chunks) // 2], chunks[-1]}]
        assert all(part.cell == cell and 0 <= part.first < part.last <= n_problems for part in ends)
        assert grid.chunk_at(chunks[0]).first == 0
        assert grid.chunk_at(chunks[-1]).last == n_problems
    for index in (0, grid.n_total // 2, grid.n_total - 1):
        part, place = grid.locate(index)
        assert part.cell * n_problems + part.first + place == index
    written = Grid.of(made.to_dict())  # what a reader of the folder knows
    assert (written.n_chunks, [cell.axes for cell in written.cells]) == (grid.n_chunks, axes)


def test_cells_that_differ_in_training_alone_have_the_same_problems():
    made = plan(d=[3, 4], loss=["logistic", "exponential"], n_steps=[10, 1000])
    assert [cell.stream for cell in made.cells] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({made.grid.chunk_size(cell.index) for cell in made.cells if cell.stream == 0}) == 1


def test_the_hash_is_that_of_what_results_depend_on():
    same = [plan(), plan(optimizer="normalized-gd"), plan(d=np.int64(4)), plan(seed=0)]
    assert len({made.hash for made in same}) == 1
    other = [plan(seed=1), plan(d=5), plan(d=[4]), plan(chunk=5), plan(device="cuda"), plan(record=["norm"])]
    assert len({made.hash for made in (same[0], *other)}) == 1 + len(other)


def first_measure(run):
    return run.trajectory.norm


def second_measure(run):
    return 2.0 * run.trajectory.norm


def test_a_changed_function_is_a_changed_plan():
    hashes = {plan(measures={"size": function}).hash for function in (first_measure, second_measure)}
    assert len(hashes) == 2


NEARLY = {
    "n_token": "n_tokens",
    "spere": "sphere",
    "logistik": "logistic",
    "normalised-gd": "normalized-gd",
    "score-gap": "score_gap",
}


@pytest.mark.parametrize(
    ("argument", "keys"),
    [
        ("plan", {"n_token": 3}),
        ("n_problems", {"n_problems": 0}),
        ("d", {"d": []}),
        ("d", {"d": [4, 4]}),
        ("d", {"d": 0}),
        ("d", {"d": None}),
        ("data", {"data": "spere"}),
        ("data", {"data": "no_such_module:make"}),
        ("data", {"data": "os:system"}),
        ("n_steps", {"n_steps": 0}),
        ("data", {"data": "os:system('x')"}),
        ("data", {"data": "marginlens.data:nothing"}),
        ("loss", {"loss": "logistik"}),
        ("optimizer", {"optimizer": "normalised-gd"}),
        ("optimizer", {"optimizer": "mirror:linf"}),
        ("step", {"optimizer": ml.SignDescent(0.1), "step": 1.0}),
        ("step", {"step": [1.0, -1.0]}),
        ("start", {"start": "normal:-1"}),
        ("start", {"start": []}),
        ("record", {"record": ["score-gap"]}),
        ("record", {"record": []}),
        ("record", {"record": "norm"}),
        ("measures", {"measures": {"norm": abs}}),
        ("measures", {"measures": {"size": 3}}),
        ("saved_steps", {"saved_steps": [5, 2]}),
        ("saved_steps", {"saved_steps": [2000]}),
        ("parameters", {"parameters": {"d": 3}}),
        ("parameters", {"parameters": {"width": object}}),
        ("seed", {"seed": -1}),
        ("chunk", {"chunk": 0}),
        ("device", {"device": "gpu"}),
        ("data", {"problem": "next-token"}),
        ("problem", {"problem": "regression"}),
    ],
)
def test_what_is_wrong_with_a_plan_is_one_sentence_which_offers_a_name_that_is_nearly_right(argument, keys):
    with pytest.raises(ml.InputError) as refused:
        plan(**keys)
    assert refused.value.argument == argument
    assert "\n" not in str(refused.value)
    for wrong, right in NEARLY.items():
        if wrong in str(keys):
            assert refused.value.remedy == f"Did you mean {right}?"


def test_what_is_no_plan_is_refused(tmp_path):
    for name, content in (("cut.toml", b"d = "), ("bytes.toml", b"\xff")):
        (tmp_path / name).write_bytes(content)
    for call in (
        lambda: ml.sweep(d=4, out=tmp_path),
        lambda: ml.sweep(plan(), tmp_path, d=4),
        lambda: ml.sweep(plan()),
        lambda: Plan.from_file(tmp_path / "cut.toml"),
        lambda: Plan.from_file(tmp_path / "bytes.toml"),
        lambda: Plan.from_file(tmp_path / "absent.toml"),
    ):
        with pytest.raises(ml.InputError):
            call()


def test_a_plan_in_a_file_is_the_plan_of_the_same_keys(tmp_path, monkeypatch):
    (tmp_path / "made_up_data.py").write_text("def make(rng, n_problems, cell):\n    raise NotImplementedError\n")
    file = tmp_path / "plan.toml"
    file.write_text(
        'data = "made_up_data:make"\nn_problems = 5\nn_steps = [10, 20]\n[parameters]\nwidth = [1, 2]\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Plan.from_file(file)
    import made_up_data

    keys = {"data": made_up_data.make, "n_problems": 5, "n_steps": [10, 20], "parameters": {"width": [1, 2]}}
    assert made.hash == Plan.of(keys).hash
    assert [tuple(cell.axes.values()) for cell in made.cells] == [(10, 1), (10, 2), (20, 1), (20, 2)]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module beside plan.toml that imports others, and a working folder that is not theirs."""
    name = f"made_up_{tmp_path.name.replace('-', '_')}"
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / f"{name}.py").write_text(
        "import os, shutil\ndef make(rng, n_problems, cell):\n    raise KeyError('no such width')\n"
        "def leave(run):\n    raise SystemExit(0)\n"
    )
    (tmp_path / f"{name}_elsewhere.py").write_text("def make(rng, n_problems, cell):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return name


def in_file(tmp_path, **keys):
    file = tmp_path / "plans" / "plan.toml"
    file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in {"n_problems": 3, **keys}.items()))
    return file


@pytest.mark.parametrize("reference", ["shutil:rmtree", "{}:os.system", "{}:shutil.rmtree", "{}_elsewhere:make"])
def test_a_plan_names_functions_of_its_own_folder_alone_unless_others_are_allowed(tmp_path, module, reference):
    named = reference.format(module)
    file = in_file(tmp_path, data=named)
    with pytest.raises(ml.InputError, match=f"one that is allowed; got '{re.escape(named)}'") as refused:
        Plan.from_file(file)
    assert (refused.value.argument, refused.value.file) == ("data", str(file))
    home = "posix" if "system" in named else "shutil" if "rmtree" in named else named.partition(":")[0]
    assert callable(Plan.from_file(file, allow=[home]).data)
    assert callable(Plan.from_file(in_file(tmp_path, data=f"{module}:make")).data)


@pytest.mark.parametrize("key", ["allow", "folder"])
def test_a_plan_cannot_allow_itself_more(tmp_path, module, key):
    with pytest.raises(ml.InputError, match=f"without the key {key}"):
        Plan.from_file(in_file(tmp_path, data="os:system", **{key: "/"}))


def test_a_function_that_fails_or_leaves_is_one_sentence_that_names_it(tmp_path, module):
    runner, shape = CliRunner(), {"n_inputs": 1, "n_tokens": 2, "d": 2, "n_steps": 1}
    ending = ["sweep", str(in_file(tmp_path, data=f"{module}:make")), "--out", "o"]
    measured = {"n_problems": 3, **shape, "measures": {"size": f"{module}:leave"}}
    told = [runner.invoke(app, ending)]
    toml = "".join(f"{k} = {json.dumps(v)}\n" for k, v in measured.items() if k != "measures")
    Path(ending[1]).write_text(f'{toml}[measures]\nsize = "{module}:leave"\n')
    told.append(runner.invoke(app, [*ending[:3], "p"]))
    (tmp_path / "plans" / f"{module}_exits.py").write_text("raise SystemExit('bye')\n")
    told.append(runner.invoke(app, [*ending[:1], str(in_file(tmp_path, data=f"{module}_exits:f")), "--out", "q"]))
    assert [one.exit_code for one in told] == [2, 2, 2]
    assert [one.stderr.count("\n") for one in told] == [1, 1, 1]
    said = [one.stderr for one in told]
    assert f"'data' in PLAN must be a function that returns; got '{module}:make', which raised KeyError" in said[0]
    assert (
        f"'measures' in PLAN must be a function that returns; got '{module}:leave', which raised SystemExit" in said[1]
    )
    assert f"got '{module}_exits:f', which raised SystemExit (bye)" in said[2]
