"""`marginlens predict` and `marginlens train` on files of sequences give the library's answers."""

import json
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.cli.train import AS_PREDICTED
from marginlens.data import figure_2, read_sequences, text_windows, write_sequences
from marginlens.data.files import read_sequence_problem
from marginlens.nexttoken import NextTokenAutomaton, limit_risk
from one_command import command
from tolerances import CONDITIONED, LOOP_AGREEMENT, ROUNDING

NAMES = ["e1", "e2", "e3", "e4"]
CROWDED = {"sequences": [["a", "b"], ["b", "c", "b"]], "labels": ["a", "c"], "E": [[0.0], [1.0], [2.0]]}
LACKING = {"sequences": [[0, 1], [1, 2], [0, 2]], "labels": [0, 0, 1]}
HEAD = [[1.0, 0.0, 0.5], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]]

predict, predicted = command("predict")
train, trained = command("train")
graph, _ = command("graph")


@pytest.fixture
def files(here):
    for name in ("f.json", "f.npz"):
        write_sequences(name, figure_2(), NAMES)
    Path("crowded.json").write_text(json.dumps(CROWDED))
    Path("lacking.json").write_text(json.dumps(LACKING))
    Path("headed.json").write_text(json.dumps({**LACKING, "C": HEAD}))
    ml.data.write_problem("p.npz", *ml.data.figure_1b())


@pytest.mark.parametrize("name", ["f.json", "f.npz"])
def test_predict_prints_the_librarys_prediction(files, name):
    told, prediction = predicted(name), ml.predict_limit(figure_2())
    assert told["details"]["priority"]["status"] == "OPTIMAL"
    np.testing.assert_allclose(told["direction"], prediction.direction, rtol=0.0, atol=CONDITIONED)
    np.testing.assert_allclose(told["details"]["mix"]["x"], prediction.details.mix.x, rtol=0.0, atol=CONDITIONED)
    labels = [(one["label"], one["applies"]) for one in told["verdicts"]]
    assert labels == [(verdict.citation, verdict.applies) for verdict in prediction.verdicts]
    assert told["why"] == prediction.why
    assert predict(name).stdout.startswith(f"{prediction.answer}\n")
    shown = predict(name, "--details").stdout
    assert shown.startswith(f"{prediction}\n{name}: {figure_2()!r}")
    assert "✗ acyclic data" in shown


CHOICES = {
    "by default": ((), {"n_steps": 4000}),
    "steps": (("--steps", "50", "--step-size", "0.1"), {"n_steps": 50, "optimizer": ml.NormalizedGD(0.1)}),
    "constant": (("--constant",), {"optimizer": ml.GradientDescent(1.0 / ml.NextTokenRisk(figure_2()).smoothness()), "n_steps": 4000}),
    "squared": (("--loss", "squared-loss", "--steps", "20"), {"loss": ml.SquaredLoss(), "n_steps": 20}),
    "start": (("--start", ",".join(map(str, range(16))), "--steps", "9"), {"start": np.arange(16.0).reshape(4, 4), "n_steps": 9}),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_train_gives_the_librarys_run(files, case):
    words, options = CHOICES[case]
    answer, ds = trained("f.json", *words), figure_2()
    told = answer["trained"]
    run, prediction = ml.descend(ds, **options), ml.predict_limit(ds, loss=options.get("loss"))
    np.testing.assert_allclose(answer["run"]["final"], run.final, rtol=0.0, atol=LOOP_AGREEMENT)
    assert (answer["run"]["status"], answer["run"]["steps_taken"]) == (run.status.name, run.steps_taken)
    loss = options.get("loss", ml.LogLoss())
    assert told["risk"] == pytest.approx(ml.NextTokenRisk(ds, loss=loss).value(run.final), rel=ROUNDING, abs=ROUNDING)
    cosine = ml.correlation(run.final, prediction.details.priority.x, axes=2)
    assert told["correlation"] == pytest.approx(cosine, abs=LOOP_AGREEMENT, rel=0.0)
    inside = prediction.details.mix.subspace.project(run.final)
    assert told["cyclic_distance"] == pytest.approx(
        np.linalg.norm(inside - prediction.details.mix.x), rel=LOOP_AGREEMENT, abs=ROUNDING
    )
    if "loss" not in options:
        distance = NextTokenAutomaton.fit(ds).total_variation(ds, run.final)
        assert told["largest_total_variation"] == pytest.approx(distance.max(), abs=LOOP_AGREEMENT, rel=0.0)
        assert told["limit_risk"] == pytest.approx(limit_risk(ds), rel=ROUNDING, abs=ROUNDING)
    else:
        assert "total_variation" not in told


def test_constant_steps_approach_the_prediction_and_normalized_ones_explain_theirs(files):
    answer = trained("f.json", "--constant", "--steps", "100000")
    assert answer["agreement"]["code"] == AS_PREDICTED
    told = answer["trained"]
    assert told["correlation"] > 0.995
    assert told["cyclic_distance"] < 1e-3
    assert told["largest_total_variation"] < 1e-3
    assert trained("f.json", "--steps", "100")["agreement"]["code"] == "cli.train.agreement.not_yet"
    shown = train("f.json", "--steps", "100", "--details").stdout
    assert "With --constant the steps are those of C Thm 3" in shown
    assert "angle with W^mm" in shown
    assert "With --constant" not in train("f.json", "--steps", "100", "--constant", "--details").stdout


def test_inseparable_data_are_trained_and_reported(files):
    told = trained("crowded.json", "--steps", "20")
    assert set(told["trained"]) == {"risk"}
    assert [one["above"] for one in told["prediction"]["conflict"]["rankings"]] == ["a", "c"]
    for run in (predict, train):
        shown = " ".join(run("crowded.json").stdout.split())
        assert 'After "b", 2 rankings contradict each other' in shown
    assert "There is no W^mm, W^cyc or automaton to compare with" in train("crowded.json", "--steps", "20").stdout


def test_unrealizable_samples_are_kept_with_a_head(files):
    told = predicted("headed.json")
    problem = read_sequence_problem("headed.json", unrealizable="keep")
    np.testing.assert_array_equal(problem.head, HEAD)
    run = ml.descend(problem.named.data, head=HEAD, loss=ml.SquaredLoss(), n_steps=40)
    found = trained("headed.json", "--loss", "squared-loss", "--steps", "40")["run"]
    np.testing.assert_allclose(found["final"], run.final, rtol=0.0, atol=LOOP_AGREEMENT)
    assert told["direction"] == ml.predict_limit(problem.named.data, head=HEAD).to_dict()["direction"]
    shown = predict("headed.json", "--details").stdout
    assert "2 unrealizable kept" in shown
    assert 'Sample 1 does not contain its label, so "2" is separated from its other tokens instead.' in shown
    assert "2 unrealizable dropped" in predict("lacking.json", "--drop", "--details").stdout


def test_windows_of_a_text_can_be_written_solved_and_read_again(here):
    text = "to be or not to be that is the question"
    Path("t.txt").write_text(text)
    for name in ("w.npz", "w.json"):
        assert graph("t.txt", "--window", "6", "--sequences", name).exit_code == 0
        back, made = read_sequences(name), text_windows(text, 6)
        assert back.vocabulary.names == made.vocabulary.names
        np.testing.assert_array_equal(back.data.tokens, made.data.tokens)
        np.testing.assert_array_equal(back.data.labels, made.data.labels)
        assert predict(name).exit_code == 0
        assert graph(name).exit_code == 0


@pytest.mark.parametrize("name", ["f.json", "f.npz", "p.npz"])
def test_a_file_on_stdin_is_read_like_the_file(files, name):
    for numbers, options in ((predicted, ()), (trained, ("--steps", "5"))):
        assert numbers("-", *options, stdin=Path(name).read_bytes()) == numbers(name, *options)
