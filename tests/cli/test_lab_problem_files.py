"""`marginlens predict` and `train` on problems that the lab saved: their own run is the default, and options go before it."""

import pytest

import marginlens as ml
from marginlens.data import figure_1b, figure_1c, figure_3b
from marginlens.lab import preset, write_problem
from marginlens.lab.problem_files import LabProblem
from marginlens.optimizers import Blockwise
from marginlens.optimizers.schedules import PowerDecay
from one_command import command, refusal
from tolerances import ROUNDING, SIX_DIGITS

predict, predicted = command("predict")
train, trained = command("train")


@pytest.mark.parametrize(
    "rule",
    [
        ml.NormalizedGD(0.3),
        ml.GradientDescent(0.7),
        ml.SignDescent(PowerDecay(0.2, 0.5), 0.3),
        ml.CoordinateDescent(0.1),
        ml.SteepestDescent(ml.Lp(1.75), 0.1, 0.5),
        ml.SteepestDescent(ml.Lp(3.0), PowerDecay(0.1, 0.25)),
        ml.Adam(PowerDecay(0.1, 0.3), (0.5, 0.9), 1e-8),
    ],
)
def test_the_run_of_a_file_is_trained(here, rule):
    problem = LabProblem(*figure_1b(), start=[0.3, -1 / 3], optimizer=rule, loss=ml.Exponential(), n_steps=23)
    write_problem("p.json", problem)
    run = ml.descend(problem.risk, optimizer=rule, n_steps=23, start=problem.start)
    answer = trained("p.json")
    assert answer["training"]["steps"] == 23
    assert answer["training"]["loss"] == "exponential"
    assert answer["training"]["start"] == [0.3, -1 / 3]
    assert answer["problems"][0]["run"]["final"] == pytest.approx(run.final.tolist(), rel=1e-12, abs=ROUNDING)


def test_options_go_before_the_file(here):
    write_problem("p.json", *figure_1c(), optimizer=ml.Adam(0.1, (0.5, 0.9), 1e-8), start=[1, 1], n_steps=50)
    changed = trained(
        "p.json", "--steps", "9", "--step-size", "0.02", "--eps", "0.5", "--start", "0,2", "--loss", "correlation-loss"
    )
    assert changed["training"] == {
        "steps": 9,
        "optimizer": "Adam(size=0.02, betas=(0.5, 0.9), eps=0.5)",
        "loss": "correlation-loss",
        "start": [0.0, 2.0],
    }
    other = trained("p.json", "--optimizer", "sign-descent")
    assert other["training"]["optimizer"].startswith("SignDescent(0.05")
    assert trained("p.json", "--constant", "--step-size", "2")["training"]["optimizer"] == "GradientDescent(size=2.0)"


def test_predict_predicts_for_the_run_of_the_file(here):
    problem = LabProblem(*figure_1b(), start=[2e6, 10.0], optimizer=ml.GradientDescent(0.01))
    write_problem("p.json", problem)
    expected = ml.predict_limit(problem.data, problem.head, start=problem.start, optimizer=problem.optimizer)
    answer = predicted("p.json")["problems"][0]
    assert expected.direction is not None  # A Thm 3, by the start and the step of the file
    assert answer["direction"] == pytest.approx(expected.direction.tolist(), rel=SIX_DIGITS, abs=ROUNDING)
    elsewhere = predicted("p.json", "--start", "0,0")["problems"][0]
    assert elsewhere["outcome"]["selected"] != answer["outcome"]["selected"]


def test_head_and_attention_are_predicted_and_trained_together(here):
    problem = preset("A-F3b").problem
    write_problem("p.json", problem)
    answer = predicted("p.json")
    assert [theorem["applies"] for theorem in answer["verdicts"]] == [False, True]
    assert str(ml.predict(problem.risk)) in predict("p.json", "--details").stdout
    run = trained("p.json", "--steps", "1500")
    exact = ml.descend(
        ml.JointRisk(figure_3b()), optimizer=Blockwise(ml.NormalizedGD(0.1)), n_steps=1500, start=problem.first_point
    )
    assert [*run["head"], *run["p"]] == pytest.approx(exact.final.tolist(), rel=1e-12, abs=ROUNDING)
    assert run["cosines"]["relaxed"] > 0.9999
    assert "away from p^relax" in train("p.json", "--steps", "50").stdout
    plain = trained(
        "p.json", "--optimizer", "gradient-descent", "--step-size", "0.5", "--steps", "3", "--start", "1,1"
    )["training"]
    assert (plain["optimizer"], plain["start"]) == ("GradientDescent(size=0.5)", [1.0, 1.0])


def test_an_error_in_a_file_names_the_file(here):
    (here / "p.json").write_text(
        '{"format": "marginlens-problem", "tokens": [[[1, 0]]], "head": [1, 0], "loss": "hinge"}'
    )
    for call in (predict, train):
        assert refusal(call("p.json")).startswith("'loss' in p.json must be")
