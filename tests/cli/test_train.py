"""`marginlens train`: the run it makes is the library's, it is held against the theory, and bad options are refused."""

from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.cli.train import AS_PREDICTED, agreement
from marginlens.data import figure_1b, figure_8, gaussian_tokens, sphere_tokens, write_problem
from one_command import command
from random_problems import ragged_problem
from tolerances import ALIGNED, CONDITIONED, DIRECTION_ON_RANDOM_DATA, LOOP_AGREEMENT, ROUNDING, SLOW_DESCENT

train, numbers = command("train")


CHOICES = {
    "by default": ((), {}),
    "steps": (("--steps", "50", "--step-size", "0.1"), {"n_steps": 50, "optimizer": ml.NormalizedGD(0.1)}),
    "constant": (("--constant", "--step-size", "0.2"), {"optimizer": ml.GradientDescent(0.2)}),
    "exponential": (("--loss", "exponential"), {"loss": ml.Exponential()}),
    "start": (("--start", "0.5,-1, 2"), {"start": [0.5, -1.0, 2.0]}),
    "random": (("--start", "random", "--seed", "3"), {"start": np.random.default_rng(3).standard_normal(3)}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_train_equals_the_librarys_run(here, case):
    words, options = CHOICES[case]
    data, v = ragged_problem(np.random.default_rng(5), 3, 4, 3)
    write_problem("r.json", data, v)
    (told,) = numbers("r.json", *words)["problems"]
    run = ml.descend(data, v, **options)
    np.testing.assert_allclose(told["run"]["final"], run.final, rtol=LOOP_AGREEMENT, atol=0.0)
    assert told["run"]["selected"] == run.selected.tolist()
    assert told["run"]["steps_taken"] == run.steps_taken
    assert told["run"]["status"] == run.status.name
    np.testing.assert_allclose(told["run"]["attention"], run.attention, rtol=LOOP_AGREEMENT, atol=ROUNDING)
    svm = ml.token_optimality(data, v, run.selected)
    assert told["correlation"] == pytest.approx(ml.correlation(run.final, svm.direction), abs=LOOP_AGREEMENT, rel=0.0)
    np.testing.assert_allclose(told["optimality"]["solution"]["x"], svm.solution.x, rtol=CONDITIONED, atol=0.0)
    assert told["optimality"]["score_gap"] == pytest.approx(svm.score_gap, rel=ROUNDING, abs=ROUNDING)


def test_the_default_constant_step_is_the_largest_allowed(here):
    data, v = sphere_tokens(4, 2, 3, 5, 0)
    write_problem("b.npz", data, v)
    told = numbers("b.npz", "--constant", "--steps", "10")["training"]
    step_size = float(ml.theory.smoothness(data, v).largest_step.min())
    assert told == {
        "steps": 10,
        "optimizer": repr(ml.GradientDescent(step_size)),
        "loss": "logistic",
        "start": [0.0] * 5,
    }


def test_train_prints_the_prediction_and_that_the_run_agrees(here):
    write_problem("b.npz", *figure_1b())
    words = ("b.npz", "--start", "0,-1", "--step-size", "0.1", "--steps", "20000")
    optimizer = ml.NormalizedGD(0.1)
    prediction = ml.predict_limit(*figure_1b(), start=[0.0, -1.0], optimizer=optimizer)
    run = ml.descend(*figure_1b(), start=[0.0, -1.0], optimizer=optimizer, n_steps=20000)
    (told,) = numbers(*words)["problems"]
    agreed = told["agreement"]
    assert agreed["code"] == AS_PREDICTED
    assert agreed["attention"] == pytest.approx(
        run.attention[0, prediction.outcome.selected[0]], abs=LOOP_AGREEMENT, rel=0.0
    )
    assert agreed["angle"] == pytest.approx(
        np.degrees(ml.angle(run.final, prediction.outcome.direction)), abs=1e-6, rel=0.0
    )
    result = train(*words)
    assert result.exit_code == 0, result.output
    steps = "Completed all 20,000 steps of NormalizedGD(size=0.1), logistic loss, from [ 0. -1.]."
    assert result.stdout == f"{prediction.answer}\n{steps}\n{agreed['sentence']}\n"
    assert "As predicted ✓ The winner has 1.000 of the attention, and p points " in result.stdout
    details = train(*words, "--details").stdout
    assert details.startswith(result.stdout)
    assert "TokenOptimality([1], locally optimal" in details
    assert told["prediction"]["why"] in details


def test_a_certain_limit_is_reached(here):
    Path("a.json").write_text('{"X": [[[-0.1, 1], [1, 0], [0, 0]]], "K": null, "y": [1], "v": [0, 1]}')
    (told,) = numbers("a.json", "--constant", "--step-size", "0.05", "--steps", "200000")["problems"]
    assert [one["applies"] for one in told["prediction"]["verdicts"][:2]] == [True, True]
    x = np.array(told["optimality"]["solution"]["x"])
    np.testing.assert_allclose(told["prediction"]["direction"], x / np.linalg.norm(x), rtol=0.0, atol=CONDITIONED)
    assert told["correlation"] > SLOW_DESCENT
    assert told["agreement"]["code"] == AS_PREDICTED
    assert told["agreement"]["angle"] == pytest.approx(np.degrees(np.arccos(told["correlation"])), abs=1e-4, rel=0.0)


def test_a_limit_that_only_a_theorem_gives_is_compared_too(here):
    # one input of equal other scores, as A Thm 2 asks, with more tokens than are followed
    rng = np.random.default_rng(3)
    tokens = np.concatenate([[[1.0, 0.0, 1.0]], np.column_stack([rng.normal(size=(1_100, 2)), np.zeros(1_100)])])
    write_problem("many.npz", ml.TokenDataset(tokens[None], [1]), np.array([0.0, 0.0, 1.0]))
    assert "--constant" in train("many.npz", "--details").stdout
    (told,) = numbers("many.npz")["problems"]
    assert told["prediction"]["outcome"] is None
    assert told["agreement"]["code"] == AS_PREDICTED
    assert told["prediction"]["direction"] is None
    assert ml.correlation(told["run"]["final"], told["prediction"]["observed"]) > ALIGNED


SEPARATE = "1.5,-0.5"  # a start of the preset the-start-decides, from which token 2 wins; from zero token 0 does


def test_a_run_that_is_too_short_or_goes_elsewhere_does_not_agree(here):
    problem = ml.lab.preset("the-start-decides").problem
    data, head = problem.data, problem.head
    write_problem("s.npz", data, head)
    (told,) = numbers("s.npz", "--start", SEPARATE)["problems"]
    assert (told["run"]["selected"], told["agreement"]["code"]) == ([2], AS_PREDICTED)
    every = np.ones(1, dtype=bool)
    prediction = ml.predict_limit(data, head, optimizer=problem.optimizer)
    assert prediction.outcome.selected.tolist() == [0]
    for n_steps, start, code in (
        (1, [0.0, 0.0], "not_yet"),
        (2_000, [1.5, -0.5], "differs"),
        (2_000, [0.0, 0.0], "as_predicted"),
    ):
        run = ml.descend(data, head, optimizer=problem.optimizer, n_steps=n_steps, start=start)
        found = agreement(run, prediction, data, every)
        assert found.code == f"cli.train.agreement.{code}"
        assert found.numbers["attention"] == run.attention[0, 0]
        assert found.numbers["taken"] == n_steps
    (short,) = numbers("s.npz", "--step-size", "0.1", "--steps", "1")["problems"]
    assert short["agreement"]["case"] == "short"
    assert short["agreement"]["steps"] == prediction.outcome.n_steps > 1


def test_a_run_to_a_finite_minimum_agrees_when_it_is_near(here):
    data, head = gaussian_tokens(20, 2, 3, 2, 0)
    optimizer = ml.GradientDescent(0.5)
    ends = [ml.predict_limit(data[j], head[j], optimizer=optimizer).outcome for j in range(len(data))]
    j = next(j for j, outcome in enumerate(ends) if outcome.finite and outcome.is_repeatable)
    write_problem("m.npz", data[j], head[j])
    for n_steps, code in ((1, "not_yet"), (50_000, "as_predicted")):
        (told,) = numbers("m.npz", "--constant", "--step-size", "0.5", "--steps", n_steps)["problems"]
        assert told["agreement"]["code"] == f"cli.train.agreement.{code}"
        distance = np.linalg.norm(np.subtract(told["run"]["final"], ends[j].point))
        assert told["agreement"]["distance"] == pytest.approx(distance, abs=ROUNDING, rel=0.0)


def test_a_prediction_that_takes_too_long_is_given_up(here, monkeypatch):
    write_problem("b.npz", *figure_1b())
    monkeypatch.setattr("marginlens.cli.train.PREDICTION_SECONDS", 0.0)
    (told,) = numbers("b.npz")["problems"]
    assert told["prediction"]["outcome"] is None
    assert told["prediction"]["not_followed"]["code"] == "cli.train.too_long"
    assert told["agreement"]["code"] == "cli.train.agreement.undecided"
    assert told["prediction"]["not_followed"]["sentence"] in train("b.npz").stdout


def test_a_batch_has_one_row_per_problem_and_equals_its_problems(here):
    data, v = sphere_tokens(6, 4, 6, 20, 0)
    write_problem("b.npz", data, v)
    told = numbers("b.npz")["problems"]
    assert np.mean([one["correlation"] for one in told]) > DIRECTION_ON_RANDOM_DATA
    lines = train("b.npz").stdout.splitlines()
    for line, (j, one) in zip(lines, enumerate(told), strict=False):
        assert line.startswith(f"Problem {j}: ")
        assert line.endswith(one["agreement"]["sentence"])
    assert lines[-2].startswith("Completed all 1,000 steps of ")
    same = [one["agreement"]["code"] for one in told].count(AS_PREDICTED)
    assert same >= 4
    assert lines[-1] == f"As predicted in {same} of 6 problems."
    write_problem("one.npz", data[2], v[2])
    alone = numbers("one.npz")["problems"][0]
    assert alone["run"]["selected"] == told[2]["run"]["selected"]
    np.testing.assert_allclose(alone["run"]["final"], told[2]["run"]["final"], rtol=LOOP_AGREEMENT, atol=0.0)


WITHOUT_DIRECTION = {
    "one token each": '{"X": [[[1, 2]], [[3, 4]]], "y": [1, -1], "v": [1, 1]}',
    "equal tokens": '{"X": [[[1, 2], [1, 2]]], "y": [1], "v": [1, 1]}',
    "no head": '{"X": [[[1, 2], [2, 1]]], "y": [1], "v": [0, 0]}',
}


@pytest.mark.parametrize("case", WITHOUT_DIRECTION)
def test_a_run_without_anything_to_train_says_so(here, case):
    Path("s.json").write_text(WITHOUT_DIRECTION[case])
    (told,) = numbers("s.json")["problems"]
    assert told["run"]["final"] == [0.0, 0.0]
    assert told["correlation"] is None
    assert told["run"]["status"] == "STATIONARY"
    assert told["agreement"]["code"] == "cli.train.agreement.nothing_to_select"
    result = train("s.json")
    assert result.exit_code == 0
    assert told["agreement"]["sentence"] in result.stdout
    assert "Stopped after 0 of 1,000 steps" in result.stdout


@pytest.mark.parametrize(("name", "steps"), [("t.png", "3000"), ("t.svg", "300")])
def test_plot_draws_the_path(here, name, steps):
    write_problem("f.json", *figure_8())
    result = train("f.json", "--plot", name, "--start", "0,-1", "--steps", steps)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"Written to {name}\n")
    assert sorted(path.name for path in here.iterdir()) == ["f.json", name]


OPTIMIZERS = {
    "sign": (("--optimizer", "sign-descent"), ml.SignDescent(0.05), ml.LInf()),
    "coordinate": (("--optimizer", "coordinate-descent", "--step-size", "0.1"), ml.CoordinateDescent(0.1), ml.L1()),
    "steepest": (
        ("--optimizer", "steepest-descent", "--norm", "l3", "--decay", "0.5", "--momentum", "0.5"),
        ml.SteepestDescent(ml.Lp(3.0), ml.optimizers.PowerDecay(0.05, 0.5), 0.5),
        ml.Lp(3.0),
    ),
    "adam": (("--optimizer", "adam", "--eps", "0"), ml.Adam(0.05), ml.LInf()),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_other_optimizers_report_the_share_of_their_own_margin(here, case):
    words, optimizer, norm = OPTIMIZERS[case]
    data, v = sphere_tokens(1, 3, 4, 6, 4)
    data, v = data[0], v[0]
    write_problem("r.json", data, v)
    told = numbers("r.json", "--steps", "600", *words)
    assert told["training"]["optimizer"] == repr(optimizer)
    (row,) = told["problems"]
    run = ml.descend(data, v, optimizer=optimizer, n_steps=600)
    np.testing.assert_allclose(row["run"]["final"], run.final, rtol=LOOP_AGREEMENT, atol=1e-9)
    margin = np.min(ml.AttentionRisk(data, v).margin_rows(run.selected).rows @ run.final) / norm.value(run.final)
    best = ml.att_svm(data, run.selected, norm=norm).bracket().upper
    assert row["norm_margin"]["norm"] == repr(norm)
    assert row["norm_margin"]["share"] == pytest.approx(margin * best, rel=1e-6, abs=ROUNDING)
    assert 0.0 < row["norm_margin"]["proved_share"] <= row["norm_margin"]["share"] * (1.0 + 1e-9)
    printed = " ".join(train("r.json", "--steps", "600", "--details", *words).stdout.split())
    assert "of the largest margin in" in printed


def test_muon_trains_next_token_matrices(here):
    Path("s.json").write_text(
        '{"sequences": [["a", "a", "b"], ["a", "b", "b"], ["b", "c", "a"]], "labels": ["b", "b", "a"]}'
    )
    told = numbers("s.json", "--optimizer", "muon", "--steps", "20")
    assert told["training"]["optimizer"].startswith("Muon(0.01")


def test_overflowing_steps_print_no_numpy_warning(here):
    write_problem("f.npz", *figure_8())
    result = train("f.npz", "--step-size", "1.5e308", "--steps", "4", "--start", "3e149,1e149")
    assert result.exit_code == 0, result.output
    assert "overflow" not in result.stderr
    assert max(map(len, result.stdout.split())) < 60
