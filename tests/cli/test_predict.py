"""`marginlens predict`: what it prints, what its JSON holds, what it draws, and how it refuses."""

from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import figure_1b, figure_8, gaussian_tokens, scored_tokens, sphere_tokens, write_problem
from marginlens.norms.choice import norm_named
from marginlens.words import text
from one_command import command
from random_problems import ragged_problem
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS, SVM_FARKAS, SVM_KKT

ON_A_LINE = [[[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]]  # no p selects the middle token


predict, numbers = command("predict")


def line(result, word):
    return next(row for row in result.stdout.splitlines() if word in row)


def test_predict_prints_the_prediction_and_every_direction(here):
    write_problem("b.npz", *figure_1b())
    prediction = ml.predict_limit(*figure_1b())
    short = predict("b.npz")
    assert short.exit_code == 0, short.output
    assert short.stdout == f"{prediction.answer}\n{text('cli.details')}\n"
    result = predict("b.npz", "--details")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{prediction}\n")
    assert result.stdout.endswith("b.npz: TokenDataset(1 inputs × 3 tokens, d_model=3, d_key=2)\n")
    assert "[-0.1    0.995]" in line(result, "best: tokens [0]")
    assert "local: tokens [1]" in result.stdout


def test_predict_json_has_the_limits_of_path_and_run(here):
    write_problem("b.npz", *figure_1b())
    (told,) = numbers("b.npz", "--start", "3,-1")["problems"]
    assert told["outcome"]["selected"] == [1]
    assert told["outcome"]["certificate"] is not None
    assert told["direction"] == pytest.approx([1.0, 0.0], rel=SIX_DIGITS, abs=ROUNDING)
    assert told["path_direction"] == told["candidates"]["directions"][0]


@pytest.mark.parametrize("seed", range(3))
def test_predict_json_has_all_directions_with_verifiable_proofs(here, seed):
    data, v = ragged_problem(np.random.default_rng(seed), 3, 4, 3)
    write_problem("r.json", data, v)
    (told,) = numbers("r.json")["problems"]
    every = ml.locally_optimal_directions(data, v)
    assert sorted(told["candidates"]["selections"]) == sorted(every.selections.tolist())
    for selected in told["candidates"]["selections"]:
        (row,) = numbers("r.json", "--selected", ",".join(map(str, selected)))["problems"]
        assert row["kind"] in ("GMM", "LMM")
        p = np.zeros(3)
        for (i, chosen, other), weight in zip(row["solution"]["pairs"], row["solution"]["multipliers"], strict=True):
            assert weight >= 0.0
            p += weight * (data.K[i, chosen] - data.K[i, other])
        np.testing.assert_allclose(p * row["margin"], row["direction"], rtol=0.0, atol=CONDITIONED)
        assert row["kkt_residual"] <= SVM_KKT
        assert row["certificate_residual"] is None
    theorems = told["verdicts"]
    assert [one["label"] for one in theorems][:3] == ["A Thm 1", "A Thm 2", "A Thm 3"]
    for one in theorems:
        assert one["applies"] == all(condition["holds"] for condition in one["conditions"])


def test_tied_optimal_tokens_give_the_minima_of_the_set_problem(here):
    data, v = scored_tokens([[(-0.1, 1.0), (-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]], [[1.0, 1.0, 0.9, 0.9]])
    write_problem("t.npz", data, v)
    result = predict("t.npz", "--details")
    assert "[-0.1    0.995]" in line(result, "best, tied: tokens [0]")
    assert "A Thm 8 applies" in result.stdout
    (told,) = numbers("t.npz")["problems"]
    assert told["candidates"]["labels"] == ["G^mm"]
    direction = told["candidates"]["directions"][0]
    np.testing.assert_allclose(told["path_direction"], direction, rtol=0.0, atol=CONDITIONED)


def test_inputs_independent_of_p_are_left_out(here):
    """Input 0 has the same key twice, so no p selects a token of it; input 1 is that of Figure 1(a)."""
    keys = [[(1.0, 1.0)] * 3, [(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]]
    data, v = scored_tokens(keys, [[1.0, 0.0, 0.5], [1.0, 0.9, 0.9]])
    write_problem("c.npz", data, v)
    (told,) = numbers("c.npz")["problems"]
    assert told["candidates"]["labels"] == ["GMM"]
    assert told["candidates"]["selections"] == [[0, 0]]
    assert told["details"]["dependent"] == [False, True]
    assert told["direction"] == told["candidates"]["directions"][0]
    assert "with n = 1" in told["why"]


def test_a_start_in_a_cone_has_a_certain_limit(here):
    write_problem("f.npz", *figure_8())
    (far,) = numbers("f.npz", "--start", "2000,0")["problems"]
    assert far["direction"] == [1.0, 0.0]
    assert {one["label"]: one["applies"] for one in far["verdicts"]}["A Thm 3"]
    assert far["why"] in predict("f.npz", "--start", "2000,0", "--details").stdout
    (near,) = numbers("f.npz", "--start", "1,0")["problems"]  # too near for A Thm 3
    assert near["outcome"]["certificate"] is not None
    assert "X Thm 1" in near["why"]


def test_selected_tokens_give_only_their_problem(here):
    data, v = figure_8()
    write_problem("f.npz", data, v)
    (row,) = numbers("f.npz", "--selected", "0, 1")["problems"]
    assert (row["kind"], row["selected"], row["margin"]) == ("LMM", [0, 1], 1.0)
    np.testing.assert_allclose(row["direction"], ml.att_svm(data, [0, 1]).direction, rtol=0.0, atol=CONDITIONED)
    result = predict("f.npz", "--selected", "0,1")
    assert "The shortest vector was found, and its multipliers prove that it is the shortest." in result.stdout
    assert "A Thm" not in result.stdout


def test_an_infeasible_selection_gives_its_certificate(here):
    data = ml.TokenDataset(ON_A_LINE, [1.0])
    write_problem("i.json", data, [1.0, 0.0])
    (row,) = numbers("i.json", "--selected", "1")["problems"]
    solution = row["solution"]
    assert (row["kind"], solution["status"], row["margin"], row["kkt_residual"]) == ("none", "INFEASIBLE", 0.0, None)
    assert row["direction"] == [None, None]
    assert row["certificate_residual"] <= SVM_FARKAS
    weights = zip(solution["pairs"], solution["certificate"], strict=True)
    total = sum(weight * (data.K[0, 1] - data.K[0, other]) for (_, _, other), weight in weights)
    np.testing.assert_allclose(total, 0.0, rtol=0.0, atol=CONDITIONED)
    result = predict("i.json", "--selected", "1")
    assert result.exit_code == 0
    assert "add up to zero" in result.stdout


def test_a_batch_has_one_row_per_problem(here):
    data, v = gaussian_tokens(5, 3, 3, 4, 1)
    write_problem("b.npz", data, v)
    result = predict("b.npz")
    assert result.exit_code == 0, result.output
    told = numbers("b.npz")["problems"]
    assert len(told) == 5
    for j in range(5):
        answer = ml.predict_limit(data[j], v[j]).answer
        assert line(result, f"Problem {j}: ") == f"Problem {j}: {answer.ends_at}. {answer.proof}"
    write_problem("one.npz", data[3], v[3])
    assert numbers("one.npz")["problems"] == [told[3]]
    chosen = numbers("b.npz", "--selected", "0,1,2")["problems"]
    assert [row["selected"] for row in chosen] == 5 * [[0, 1, 2]]


def test_long_lists_are_cut_and_the_rest_is_counted(here):
    turn = 2.0 * np.pi * np.arange(50) / 50
    ring, high = np.stack([np.cos(turn), np.sin(turn)], axis=-1), np.arange(50) % 2 == 0  # every second token is an LMM
    write_problem("ring.npz", *scored_tokens([ring], [np.where(high, 1.0 + 0.01 * np.arange(50), 0.0)]))
    result = predict("ring.npz", "--details")
    assert result.stdout.count("], direction [") == 10
    assert "and 15 more" in result.stdout
    assert len(numbers("ring.npz")["problems"][0]["candidates"]["directions"]) == 25


def test_a_problem_with_too_many_selections_is_reported(here):
    write_problem("l.npz", ml.TokenDataset(np.random.default_rng(0).normal(size=(20, 9, 30)), np.ones(20)), np.ones(30))
    assert text("candidates.some", case="partial") in predict("l.npz", "--details").stdout


@pytest.mark.parametrize("name", ["l1", "l2", "l-inf", "l1.75", "l3"])
def test_a_norm_gives_its_solution_with_certified_bounds(here, name):
    data, v = gaussian_tokens(3, 3, 3, 6, 1)
    write_problem("b.npz", data, v)
    n_solved = 0
    for j, row in enumerate(numbers("b.npz", "--norm", name)["problems"]):
        expected = ml.att_svm(data[j], data[j].optimal(v[j]), norm=norm_named(name))
        assert row["solution"]["status"] == expected.status.name
        assert row["is_unique"] is expected.is_unique
        if row["solution"]["status"] == "OPTIMAL":
            np.testing.assert_allclose(row["direction"], expected.direction, rtol=0.0, atol=CONDITIONED)
            assert row["bracket"]["lower"] <= (1.0 + 1e-9) / row["margin"]
            assert row["bracket"]["gap"] <= 1e-9
            n_solved += 1
    assert n_solved >= 2


def test_a_norm_is_shown_with_its_bounds_and_with_other_solutions(here):
    write_problem("f.npz", *figure_8())
    shown = predict("f.npz", "--norm", "l-inf").stdout
    assert "norm=LInf()" in shown
    assert "This p has norm 2, and no p with margin one has a norm below 2" in shown
    assert "same margin" in predict("f.npz", "--norm", "l-inf", "--selected", "0,1").stdout
    write_problem("i.json", ml.TokenDataset(ON_A_LINE, [1.0]), [1.0, 0.0])
    assert "add up to zero" in predict("i.json", "--norm", "l1", "--selected", "1").stdout


@pytest.mark.parametrize(
    ("maker", "name"),
    [(figure_8, "OUT.PNG"), (figure_1b, "out.svg"), (lambda: sphere_tokens(2, 3, 3, 2, 0), "out.png")],
)
def test_plot_draws_problems_in_the_plane(here, maker, name):
    pytest.importorskip("matplotlib")
    write_problem("f.npz", *maker())
    Path(name).write_text("an older file")
    result = predict("f.npz", "--plot", name)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"Written to {name}\n")
    magic = b"\x89PNG" if name.lower().endswith("png") else b"<?xml"
    assert Path(name).read_bytes().startswith(magic)
    assert sorted(path.name for path in here.iterdir()) == sorted(["f.npz", name])
