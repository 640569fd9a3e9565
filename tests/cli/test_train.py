"""`marginlens train`: the run it makes is the library's, it is held against the theory, and bad options are refused."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import marginlens as ml
from marginlens.data import TokenDataset, figure_1a, figure_1b, figure_8, scored_tokens, sphere_tokens, write_problem
from marginlens.plotting import plane
from one_command import command
from random_problems import ragged_problem
from tolerances import ALIGNED, CONDITIONED, DIRECTION_ON_RANDOM_DATA, LOOP_AGREEMENT, ROUNDING, SLOW_DESCENT

train, numbers = command("train")


CHOICES = {
    "by default": ((), {}),
    "steps": (("--steps", "50", "--step-size", "0.1"), {"n_steps": 50, "optimizer": ml.NormalizedGD(0.1)}),
    "constant": (("--constant", "--step-size", "0.2"), {"optimizer": ml.GradientDescent(0.2)}),
    "exponential": (("--loss", "exponential"), {"loss": ml.Exponential()}),
    "correlation": (("--loss", "Correlation"), {"loss": ml.CorrelationLoss()}),
    "start": (("--start", "0.5,-1, 2"), {"start": [0.5, -1.0, 2.0]}),
    "negative start": (("--start", "-1,0,0"), {"start": [-1.0, 0.0, 0.0]}),
    "many steps": (("--steps", "5000"), {"n_steps": 5000}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_it_is_the_run_that_the_library_makes(here, case):
    words, options = CHOICES[case]
    data, v = ragged_problem(np.random.default_rng(5), 3, 4, 3)
    write_problem("r.json", data, v)
    (told,) = numbers("r.json", *words)["problems"]
    run = ml.descend(data, v, **options)
    np.testing.assert_allclose(np.multiply(told["direction"], told["norm"]), run.final, rtol=LOOP_AGREEMENT)
    assert told["selected"] == run.selected.tolist()
    assert told["steps_taken"] == run.steps_taken
    assert told["status"] == run.status.name
    np.testing.assert_allclose(told["probabilities"], run.attention.max(axis=-1), rtol=LOOP_AGREEMENT)
    svm = ml.token_optimality(data, v, run.selected)
    assert told["correlation"] == pytest.approx(ml.correlation(run.final, svm.direction), abs=LOOP_AGREEMENT)
    assert told["solution"]["margin"] == pytest.approx(svm.margin, rel=ROUNDING)
    assert told["solution"]["score_gap"] == pytest.approx(svm.score_gap, rel=ROUNDING)


def test_a_constant_step_is_the_largest_that_the_theorems_allow_unless_given(here):
    data, v = sphere_tokens(4, 2, 3, 5, 0)
    write_problem("b.npz", data, v)
    told = numbers("b.npz", "--constant", "--steps", "10")["training"]
    assert told == {
        "steps": 10,
        "step": "constant",
        "step_size": pytest.approx(ml.theory.smoothness(data, v).largest_step.min(), rel=ROUNDING),
        "loss": "logistic",
        "start": [0.0] * 5,
    }


@pytest.mark.parametrize("loss", [ml.Exponential(), ml.CorrelationLoss()])
def test_a_constant_step_depends_on_the_loss(here, loss):
    data, v = sphere_tokens(1, 2, 3, 5, 0)
    write_problem("b.npz", data, v)
    told = numbers("b.npz", "--constant", "--steps", "10", "--loss", type(loss).__name__.removesuffix("Loss"))[
        "training"
    ]
    assert told["step_size"] == pytest.approx(ml.theory.smoothness(data, v, loss).largest_step.min(), rel=ROUNDING)


def test_a_constant_step_is_one_where_the_theorems_allow_any(here):
    Path("s.json").write_text('{"X": [[[1, 2], [2, 1]]], "y": [1], "v": [0, 0]}')
    assert numbers("s.json", "--constant")["training"]["step_size"] == 1.0


def test_it_prints_where_training_went_and_what_that_is(here):
    write_problem("b.npz", *figure_1b())
    result = train("b.npz", "--start", "0,-1", "--step-size", "0.1", "--steps", "20000")
    assert result.exit_code == 0, result.output
    assert "20,000 normalised steps of length 0.1, logistic loss, from (0.000, -1.000)" in result.stdout
    assert "locally optimal (LMM)" in result.stdout
    assert "It took every step that was asked for. (20,000 steps)" in result.stdout
    flat = " ".join(result.stdout.split())
    assert "it selects the tokens of an LMM, and has cosine 1.000000 with its direction." in flat


def test_a_certain_limit_is_reached(here):
    Path("a.json").write_text('{"X": [[[-0.1, 1], [1, 0], [0, 0]]], "K": null, "y": [1], "v": [0, 1]}')
    (told,) = numbers("a.json", "--constant", "--step-size", "0.05", "--steps", "200000")["problems"]
    assert [one["applies"] for one in told["prediction"]["theorems"][:2]] == [True, True]
    np.testing.assert_allclose(told["prediction"]["direction"], told["solution"]["direction"], atol=CONDITIONED)
    assert told["correlation_with_prediction"] == pytest.approx(told["correlation"], abs=CONDITIONED)
    assert told["correlation_with_prediction"] > SLOW_DESCENT
    assert told["agreement"].startswith("The limit is certain, and the trained direction has cosine 0.9")


def test_normalised_steps_have_an_observed_limit_and_constant_ones_would_make_it_certain(here):
    write_problem("a.npz", *figure_1a())
    words = " ".join(train("a.npz").stdout.split())
    assert "with the limit that is observed, not proved, for such steps." in words
    assert (
        "Observed, not proved: the GMM direction, from every start. A Thm 2 with n = 1 proves it for constant steps"
        in words
    )
    assert "claim A-F1a" in words
    assert "With --constant the steps are those of the theorem, and the limit is certain" in words
    assert "start is zero" not in words
    (told,) = numbers("a.npz")["problems"]
    assert told["prediction"]["direction"] is None
    assert told["correlation_with_observed"] > ALIGNED
    constant = " ".join(train("a.npz", "--constant").stdout.split())
    assert "The limit is certain" in constant
    assert "Certain: the GMM direction, from every start, by A Thm 2 with n = 1." in constant
    assert "Observed" not in constant
    write_problem("b.npz", *figure_1b())  # Theorem 2 does not apply, and constant steps would not help
    other = " ".join(train("b.npz").stdout.split())
    assert "A Thm 2 does not apply (A Assumption B), nor does A Thm 3: the start is zero and selects nothing" in other
    assert "Steps are normalised besides" in other
    assert "--constant" not in other


def test_a_batch_has_one_row_per_problem_and_equals_its_problems(here):
    data, v = sphere_tokens(6, 4, 6, 20, 0)
    write_problem("b.npz", data, v)
    told = numbers("b.npz")["problems"]
    assert np.mean([one["correlation"] for one in told]) > DIRECTION_ON_RANDOM_DATA
    result = train("b.npz")
    for j, one in enumerate(told):
        text = next(text for text in result.stdout.splitlines() if text.startswith(f"│       {j} │"))
        assert f"{one['correlation']:.6f}" in text
        assert f" {one['solution']['kind']} " in text
    assert f"smallest {min(one['correlation'] for one in told):.6f}." in result.stdout
    write_problem("one.npz", data[2], v[2])
    alone = numbers("one.npz")["problems"][0]
    assert alone["selected"] == told[2]["selected"]
    np.testing.assert_allclose(alone["direction"], told[2]["direction"], rtol=LOOP_AGREEMENT)


def test_a_problem_that_stops_stops_no_other(here):
    data, v = sphere_tokens(2, 2, 3, 4, 0)
    v = v * [[0.0], [1.0]]  # without a head nothing moves
    write_problem("b.npz", data, v)
    told = numbers("b.npz", "--steps", "300")["problems"]
    assert [one["steps_taken"] for one in told] == ml.descend(data, v, n_steps=300).steps_taken.tolist()
    assert told[0]["steps_taken"] < told[1]["steps_taken"] == 300
    result = train("b.npz", "--steps", "300")
    ended = [text.split("│")[-2].strip() for text in result.stdout.splitlines() if text.startswith("│")]
    assert ended == ["stationary", "completed"]


def test_a_batch_tells_which_limits_were_certain(here):
    keys = [[(-0.1, 1.0), (1.0, 0.0), (0.0, 0.0)]]
    write_problem("b.npz", *scored_tokens([keys, keys], [[[1.0, 0.9, 0.9]], [[1.0, 0.9, 0.0]]]))
    first, second = numbers("b.npz", "--constant")["problems"]
    cells = [text for text in train("b.npz", "--constant").stdout.splitlines() if text.startswith("│")]
    assert cells[0].endswith(f"│ yes: {first['correlation_with_prediction']:.6f} │")
    observed = [text for text in train("b.npz").stdout.splitlines() if text.startswith("│")]
    assert observed[0].split("│")[-2].strip().startswith("observed: 0.99")
    assert second["correlation_with_prediction"] is None
    assert cells[1].split("│")[-2].strip() == "no"


def test_the_start_decides_what_is_certain(here):
    write_problem("f.npz", *figure_8())
    words = ("--constant", "--step-size", "0.05", "--steps", "10", "--start")
    near, far = (numbers("f.npz", *words, f"{x},0")["problems"][0]["prediction"] for x in (1, 2000))
    assert near["direction"] is None
    assert far["direction"] == [1.0, 0.0]


def test_a_tie_is_told(here):
    Path("tie.json").write_text('{"X": [[[1, 0], [0, 1], [-1, -1]]], "y": [1], "v": [1, 1]}')
    write_problem("f.npz", *figure_1b())
    assert "globally optimal (GMM), tied with a neighbour" in train("tie.json").stdout
    assert "tied" not in train("f.npz").stdout


WITHOUT_DIRECTION = {
    "one token each": ('{"X": [[[1, 2]], [[3, 4]]], "y": [1, -1], "v": [1, 1]}', "there is nothing to select."),
    "equal tokens": ('{"X": [[[1, 2], [1, 2]]], "y": [1], "v": [1, 1]}', "The softmax prefers no single token"),
    "no head": ('{"X": [[[1, 2], [2, 1]]], "y": [1], "v": [0, 0]}', "The weights never left zero"),
}


@pytest.mark.parametrize("case", WITHOUT_DIRECTION)
def test_a_run_without_a_direction_says_why(here, case):
    text, sentence = WITHOUT_DIRECTION[case]
    Path("s.json").write_text(text)
    (told,) = numbers("s.json")["problems"]
    assert told["direction"] == [None, None]
    assert told["correlation"] is None
    assert told["status"] == "STATIONARY"
    assert sentence in told["agreement"]
    result = train("s.json")
    assert result.exit_code == 0
    assert sentence in result.stdout
    assert "nan" not in result.stdout


def test_a_step_out_of_all_numbers_is_said_to_be_one(here):
    Path("s.json").write_text('{"X": [[[1, 2], [2, 1.5]]], "y": [1], "v": [1, 1]}')
    (told,) = numbers("s.json", "--step-size", "1e308", "--steps", "9")["problems"]
    assert told["status"] == "NON_FINITE"
    assert "left what numbers can hold" in told["agreement"]


@pytest.mark.parametrize("steps", ["9223372036854775808", "99999999999999999999"])
def test_more_steps_than_64_bits_hold_are_refused(here, steps):
    write_problem("n.npz", *sphere_tokens(1, 2, 3, 2, 0))
    result = train("n.npz", "--steps", steps)
    assert result.exit_code == 2
    assert "'steps' argument must be a whole number of at most 9223372036854775807" in result.stderr


def test_tokens_that_do_not_outscore_their_neighbours_are_said_to(here):
    data, v = sphere_tokens(4, 5, 3, 2, 3)
    write_problem("n.npz", data[3], v[3])
    result = train("n.npz")
    assert "not locally optimal" in result.stdout
    assert "The selected tokens do not outscore their neighbours" in result.stdout


@pytest.mark.parametrize("name", ["t.png", "t.svg"])
@pytest.mark.parametrize("steps", ["300", "3000"])
def test_plot_draws_the_path(here, name, steps):
    write_problem("f.json", *figure_8())
    result = train("f.json", "--plot", name, "--start", "0,-1", "--steps", steps)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"The picture is at {name}\n")
    assert sorted(path.name for path in here.iterdir()) == ["f.json", name]


def test_the_path_that_is_drawn_is_that_of_the_run(here, monkeypatch):
    seen = {}

    def problem_figure(data, head, rows, paths, loss):
        seen.update(rows=rows, paths=paths)
        return Figure()

    monkeypatch.setattr(plane, "problem_figure", problem_figure)
    data, v = figure_8()
    write_problem("f.json", data, v)
    train("f.json", "--plot", "t.png", "--start", "0,-1", "--steps", "3000")
    kept = ml.descend(data, v, n_steps=3000, start=[0.0, -1.0], record=ml.Record(1)).saved["x"]
    np.testing.assert_allclose(seen["paths"][0, :401], kept[:401], atol=LOOP_AGREEMENT)
    np.testing.assert_allclose(seen["paths"][0, -1], kept[-1], rtol=LOOP_AGREEMENT)
    assert ml.correlation(seen["paths"][0, -1], [1.0, 2.0]) > ALIGNED
    train("f.json", "--plot", "t.png", "--start", "2000,0", "--steps", "10")
    assert [row["kind"] for row in seen["rows"][0]] == ["GMM", "LMM"]


def test_lines_fit_into_100_columns(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_problem("b.npz", *sphere_tokens(3, 5, 3, 2, 3))
    write_problem("wide.npz", TokenDataset(np.random.default_rng(0).normal(size=(40, 9, 30)), np.ones(40)), np.ones(30))
    for name in ("b.npz", "wide.npz"):
        text = train(name).stdout
        for code in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
            text = text.replace(code, "")
        assert max(len(one) for one in text.splitlines()) <= 100


BAD = {
    "no file": (["gone.npz"], "The 'path' argument must be a .npz or JSON file"),
    "hinge": (
        ["f.npz", "--loss", "hinge"],
        "The 'loss' argument must be one of logistic, exponential, correlation; got",
    ),
    "no steps": (["f.npz", "--steps", "0"], "The 'steps' argument must be a whole number of at least 1; got 0"),
    "no size": (["f.npz", "--step-size", "0"], "The 'step_size' argument must be a positive number; got 0.0"),
    "nan": (["f.npz", "--step-size", "nan"], "The 'step_size' argument must be a positive number; got nan"),
    "minus": (["f.npz", "--constant", "--step-size", "-1"], "The 'step_size' argument must be a positive number"),
    "words": (["f.npz", "--start", "here"], "The 'start' argument must be numbers separated by commas"),
    "three": (["f.npz", "--start", "1,2,3"], "The 'start' argument must be an array of finite numbers of shape (2,)"),
    "infinite": (["f.npz", "--start", "inf,0"], "The 'start' argument must be an array of finite numbers"),
    "not a plane": (["deep.npz", "--plot", "x.png"], "The 'plot' argument must be left out unless keys have two coord"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_bad_input_is_one_sentence_and_2(here, case, form):
    write_problem("f.npz", *figure_8())
    write_problem("deep.npz", *sphere_tokens(2, 2, 3, 4, 0))
    arguments, sentence = BAD[case]
    result = train(*arguments, *form)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert sentence in result.stderr
    assert sorted(path.name for path in here.iterdir()) == ["deep.npz", "f.npz"]


def test_keys_too_large_for_a_step_of_the_theorems_ask_for_a_step(here):
    data, v = figure_8()
    write_problem("far.npz", TokenDataset(1e200 * data.X, data.y), v)
    result = train("far.npz", "--constant")
    assert result.exit_code == 2
    assert result.stderr == (
        "marginlens: The 'step_size' argument must be given for keys so large that 1/L_p is below the range of numbers; got none instead.\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert train("far.npz").exit_code == 0
        assert command("solve")[0]("far.npz").exit_code == 0
