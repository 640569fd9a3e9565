"""Plans: grids in their documented order, one sentence for whatever is wrong, and a hash of all that results depend on."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marginlens as ml
from marginlens.sweeps import Plan
from marginlens.sweeps.grid import AXES, Grid
from random_examples import examples
from refusals import refused

SHAPE = {"n_inputs": 2, "n_tokens": 3, "d": 4}


def plan(**keys):
    return Plan.of({**SHAPE, "n_problems": 10, **keys})


def axis(values):
    return st.lists(values, min_size=1, max_size=3, unique=True)


@examples(30)
@given(
    n_tokens=axis(st.integers(2, 6)),
    d=axis(st.integers(1, 600)),
    loss=axis(st.sampled_from(["logistic", "exponential", "correlation-loss"])),
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


def test_the_plan_hash_covers_what_results_depend_on():
    same = [plan(), plan(optimizer="normalized-gd"), plan(d=np.int64(4)), plan(seed=0)]
    assert len({made.hash for made in same}) == 1
    other = [plan(seed=1), plan(d=5), plan(d=[4]), plan(chunk=5), plan().on("cuda"), plan(record=["norm"])]
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
        ("n_steps", {"n_steps": 0}),
        ("loss", {"loss": "logistik"}),
        ("optimizer", {"optimizer": "normalised-gd"}),
        ("optimizer", {"optimizer": "mirror-descent:l-inf"}),
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
        ("plan", {"device": "cpu"}),
        ("data", {"problem": "next-token"}),
        ("problem", {"problem": "regression"}),
    ],
)
def test_an_invalid_plan_is_refused_with_a_suggestion(argument, keys):
    with pytest.raises(ml.InputError) as refused:
        plan(**keys)
    assert refused.value.argument == argument
    assert "\n" not in str(refused.value)
    for wrong, right in NEARLY.items():
        if wrong in str(keys):
            assert refused.value.remedy == f"Did you mean {right}?"


@pytest.mark.parametrize("wrong", [7, "plan.toml", {"d": 4}, None])
def test_an_invalid_plan_type_is_refused(tmp_path, wrong):
    with refused("plan"):
        ml.sweep(wrong, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cpu:1", 0])
def test_an_invalid_device_is_refused(tmp_path, device):
    with refused("device"):
        ml.sweep(plan(), tmp_path / "folder", device=device)


def test_a_plan_of_an_earlier_version_has_the_same_hash():
    """The folders of sweeps that were run before stay those of their plans."""
    made = plan(d=[4, 7], n_steps=9, chunk=5, record=["norm", "status"], seed=3)
    assert made.hash == "b2edfd0f7c0966f2c6f402a78dfa4ad47a57dd40fe6610944bca33cb2d78c5d3"


def leaves(rng, n_problems, cell):
    raise SystemExit(0)


def test_a_failing_function_is_named(tmp_path):
    with refused("data"):
        ml.sweep({"data": leaves, "n_problems": 3}, tmp_path / "folder")
