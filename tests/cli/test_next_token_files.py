"""`marginlens solve` and `marginlens train` on files of sequences: the library's answers, and one sentence for what is unusable."""

import json
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import cyclic_sequences, figure_2, read_sequences, text_windows, write_sequences
from marginlens.data.files import holds_sequences, read_sequence_problem
from marginlens.nexttoken import NextTokenAutomaton, limit_risk
from one_command import command
from tolerances import CONDITIONED, LOOP_AGREEMENT, ROUNDING

NAMES = ["e1", "e2", "e3", "e4"]
CROWDED = {"sequences": [["a", "b"], ["b", "c", "b"]], "labels": ["a", "c"], "E": [[0.0], [1.0], [2.0]]}
LACKING = {"sequences": [[0, 1], [1, 2], [0, 2]], "labels": [0, 0, 1]}
HEAD = [[1.0, 0.0, 0.5], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]]

solve, solved = command("solve")
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
def test_solve_tells_what_the_library_predicts(files, name):
    told, prediction = solved(name), ml.predict_limit(figure_2())
    assert told["separability"]["status"] == "OPTIMAL"
    assert told["separability"]["margin"] == pytest.approx(float(prediction.priority.margin), rel=CONDITIONED)
    np.testing.assert_allclose(told["prediction"]["direction"], prediction.direction, atol=CONDITIONED)
    np.testing.assert_allclose(told["prediction"]["correction"], prediction.correction, atol=CONDITIONED)
    labels = [(one["label"], one["applies"]) for one in told["prediction"]["theorems"]]
    assert labels == [(verdict.citation, verdict.applies) for verdict in prediction.verdicts]
    assert told["prediction"]["why"] == prediction.why
    shown = solve(name).stdout
    assert "C Thm 3 applies: gradient descent from any start converges to the direction of W^mm" in shown
    assert "✗ acyclic data" in shown


CHOICES = {
    "by default": ((), {"n_steps": 4000}),
    "steps": (("--steps", "50", "--step-size", "0.1"), {"n_steps": 50, "optimizer": ml.NormalizedGD(0.1)}),
    "constant": (("--constant",), {"optimizer": ml.GradientDescent(1.0 / ml.NextTokenRisk(figure_2()).smoothness()), "n_steps": 4000}),
    "squared": (("--loss", "squared", "--steps", "20"), {"loss": ml.SquaredLoss(), "n_steps": 20}),
    "start": (("--start", ",".join(map(str, range(16))), "--steps", "9"), {"start": np.arange(16.0).reshape(4, 4), "n_steps": 9}),
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_train_is_the_run_that_the_library_makes(files, case):
    words, options = CHOICES[case]
    told = trained("f.json", *words)["trained"]
    ds = figure_2()
    run, prediction = ml.descend(ds, **options), ml.predict_limit(ds, loss=options.get("loss"))
    np.testing.assert_allclose(told["W"], run.final, atol=LOOP_AGREEMENT)
    assert (told["status"], told["steps_taken"]) == (run.status.name, run.steps_taken)
    loss = options.get("loss", ml.LogLoss())
    assert told["risk"] == pytest.approx(ml.NextTokenRisk(ds, loss=loss).value(run.final), rel=ROUNDING)
    cosine = ml.correlation(run.final, prediction.priority.x, axes=2)
    assert told["correlation"] == pytest.approx(cosine, abs=LOOP_AGREEMENT)
    inside = prediction.mix.subspace.project(run.final)
    assert told["cyclic_distance"] == pytest.approx(np.linalg.norm(inside - prediction.mix.x), rel=LOOP_AGREEMENT)
    if "loss" not in options:
        distance = NextTokenAutomaton.fit(ds).total_variation(ds, run.final)
        assert told["total_variation"]["largest"] == pytest.approx(distance.max(), abs=LOOP_AGREEMENT)
        assert told["limit_risk"] == pytest.approx(limit_risk(ds), rel=ROUNDING)
    else:
        assert told["total_variation"] is None


def test_constant_steps_approach_the_prediction_and_normalised_ones_are_told_how(files):
    told = trained("f.json", "--constant", "--steps", "100000")["trained"]
    assert told["correlation"] > 0.995
    assert told["cyclic_distance"] < 1e-3
    assert told["total_variation"]["largest"] < 1e-3
    assert "With --constant the steps are those of C Thm 3" in train("f.json", "--steps", "100").stdout
    assert "With --constant" not in train("f.json", "--steps", "100", "--constant").stdout
    assert "Beside the prediction" in train("f.json", "--steps", "100").stdout


def test_what_cannot_be_separated_is_trained_and_said(files):
    told = trained("crowded.json", "--steps", "20")
    assert told["trained"]["correlation"] is None
    assert told["trained"]["total_variation"] is None
    assert [one["above"] for one in told["separability"]["conflict"]["rankings"]] == ["a", "c"]
    for run in (solve, train):
        shown = " ".join(run("crowded.json").stdout.split())
        assert 'After "b", 2 rankings contradict each other' in shown
    assert "There is no W^mm, W^cyc or automaton to compare with" in train("crowded.json", "--steps", "20").stdout


def test_samples_without_their_label_are_kept_with_a_head(files):
    told = solved("headed.json")
    assert told["unrealizable"] == [{"sample": 1, "separated": "2"}, {"sample": 2, "separated": "2"}]
    problem = read_sequence_problem("headed.json", unrealizable="keep")
    np.testing.assert_array_equal(problem.head, HEAD)
    run = ml.descend(problem.named.data, head=HEAD, loss=ml.SquaredLoss(), n_steps=40)
    found = trained("headed.json", "--loss", "squared", "--steps", "40")["trained"]
    np.testing.assert_allclose(found["W"], run.final, atol=LOOP_AGREEMENT)
    assert "2 sequences lack their label and are kept" in solve("headed.json").stdout
    assert solved("lacking.json", "--drop")["dropped"] == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("lacking.json",), 'Leave them out with --drop, or give a head "C" in the file.'),
        (("f.json", "--plot", "a.png"), "'plot' argument must be left out for a file of sequences"),
        (("f.json", "--start", "1,2"), None),
        (("p.npz", "--drop"), "'drop' argument must be left out unless the file holds sequences"),
        (("bad.json",), "'labels' argument must be"),
        (("odd.json",), "'C' argument must be"),
    ],
)
@pytest.mark.parametrize("run", [solve, train], ids=["solve", "train"])
def test_what_is_unusable_ends_in_one_sentence(files, run, arguments, sentence):
    Path("bad.json").write_text('{"sequences": [[0, 1]], "labels": 3}')
    Path("odd.json").write_text('{"sequences": [[0, 1]], "labels": [0], "C": [[1, 2]]}')
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("marginlens: ")
    assert result.stderr.count("\n") == 1
    assert (sentence or "'start' argument must be") in result.stderr


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--loss", "hinge"), "'loss' argument must be one of log, squared, cross-entropy, squared-probability"),
        (("--steps", "0"), "'steps' argument must be a whole number of at least 1"),
        (("--step-size", "-1"), "'step_size' argument must be"),
        (("--start", "1,x"), "'start' argument must be numbers separated by commas"),
    ],
)
def test_bad_options_of_training_end_in_one_sentence(files, option, sentence):
    result = train("f.json", *option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence in result.stderr


def test_windows_of_a_text_can_be_written_solved_and_read_again(here):
    text = "to be or not to be that is the question"
    Path("t.txt").write_text(text)
    for name in ("w.npz", "w.json"):
        assert graph("t.txt", "--window", "6", "--sequences", name).exit_code == 0
        back, made = read_sequences(name), text_windows(text, 6)
        assert back.vocabulary.names == made.vocabulary.names
        np.testing.assert_array_equal(back.data.tokens, made.data.tokens)
        np.testing.assert_array_equal(back.data.labels, made.data.labels)
        assert solve(name).exit_code == 0
        assert graph(name).exit_code == 0


def test_files_of_sequences_are_known_by_their_entry(files):
    assert [holds_sequences(name) for name in ("f.json", "f.npz", "p.npz", "none.json")] == [True, True, False, False]


def test_a_packed_file_gives_back_ragged_sequences(here):
    ds = ml.SequenceDataset([[0, 1, 2], [2, 0]], [1, 2], cyclic_sequences(3, 4, 5, 3, 0).E)
    write_sequences("r.npz", ds, ["a", "b", "c"], head=np.ones((3, 4)))
    back = read_sequence_problem("r.npz")
    np.testing.assert_array_equal(back.named.data.tokens, ds.tokens)
    np.testing.assert_array_equal(back.named.data.offsets, ds.offsets)
    np.testing.assert_array_equal(back.named.data.E, ds.E)
    np.testing.assert_array_equal(back.head, np.ones((3, 4)))
    np.savez("bad.npz", sequences=np.zeros((2, 3), dtype=int), labels=np.zeros(2, dtype=int), lengths=np.array([1, 4]))
    with pytest.raises(ml.InputError, match="'lengths' argument must be whole numbers from 1 to 3"):
        read_sequences("bad.npz")
    np.savez("flat.npz", sequences=np.zeros(3, dtype=int), labels=np.zeros(2, dtype=int))
    with pytest.raises(ml.InputError, match="'sequences' argument must be an array"):
        read_sequences("flat.npz")
