"""The examples: each runs as it stands, says what it promises, and reads like the others."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tolerances import ALIGNED, CONDITIONED, DIRECTION_ON_RANDOM_DATA

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GROUPS = ("selection", "optimizers", "next_tokens", "texts", "real_models")
SCRIPTS = sorted(path for group in GROUPS for path in (EXAMPLES / group).glob("*.py"))
LONGEST = 60


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run an example as a program in an empty folder, and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_example(name, *arguments):
        (path,) = (str(path) for path in SCRIPTS if path.stem == name)
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        runpy.run_path(path, run_name="__main__")
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return run_example


def numbers(pattern, output):
    found = [float(one) for one in re.findall(pattern, output)]
    assert found, output
    return found


def test_predict_and_verify_reaches_what_it_predicted(run):
    output = run("predict_and_verify")
    assert "Certain for constant steps up to 1/L_p: the direction that selects [0, 1], by A Thm 3." in output
    assert "[ ]" not in output
    assert numbers(r"cosine ([\d.]+)", output)[0] > ALIGNED


def test_a_thousand_problems_need_the_exact_gradient(run):
    output = run("a_thousand_problems")
    exact, textbook = numbers(r"mean cosine ([\d.]+)", output)
    assert exact > DIRECTION_ON_RANDOM_DATA
    assert textbook < 1.0 - 100.0 * (1.0 - exact)


def test_two_starts_end_at_two_limits(run, tmp_path):
    output = run("two_starts_two_limits", "picture.png")
    assert re.findall(r"ends at the (\w+)", output) == ["GMM"] * 4 + ["LMM"] * 2
    assert min(numbers(r"cosine ([\d.]+)", output)) > ALIGNED
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_an_infeasible_selection_has_a_certificate(run):
    output = run("infeasible_selection")
    assert "inside: No vector satisfies every constraint, and the certificate proves it." in output
    assert "their sum is [0. 0.]" in output
    weights = numbers(r"  ([\d.]+) × \(", output)
    assert sum(weights) == pytest.approx(1.0, abs=len(weights) * 0.5e-4)  # printed with four digits


def test_your_own_optimizer_reaches_the_limits_on_every_risk(run):
    cosines = numbers(r"cosine ([\d.]+)", run("your_own_optimizer"))
    assert len(cosines) == 5
    assert min(cosines) > 0.98


def test_your_own_loss_has_the_same_limit(run):
    output = run("your_own_loss")
    assert (
        "Certain for constant steps up to 1/L_p: the GMM direction, from every start, by A Thm 2 with n = 1." in output
    )
    found = numbers(r"cosine ([\d.]+)", output)
    assert len(found) in (4, 5)  # the fifth, a nonlinear head, needs torch
    assert ("marginlens[torch]" in output) == (len(found) == 4)
    assert min(found) > ALIGNED


def test_your_own_loss_runs_without_torch(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    code = f"import sys, runpy; sys.path.insert(0, '.'); runpy.run_path({str(EXAMPLES / 'selection' / 'your_own_loss.py')!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "The nonlinear head is left out: it needs pip install 'marginlens[torch]'." in done.stdout


def test_a_text_becomes_an_automaton(run):
    output = run("automaton_of_a_text")
    assert "They form one component." in output
    assert "After and comes the." in output
    near, nearer, nearest = numbers(r"automaton ([\d.e+-]+)", output)
    assert near > nearer > nearest
    assert nearest < CONDITIONED


def test_explain_a_review_shows_which_tokens_decide(run, tmp_path):
    output = run("explain_a_review", "page.html")
    assert numbers(r"([\d.]+)% of 200", output)[0] > 90.0  # a coin flip on the negated ones would give 85
    assert "selected token: not dull" in output
    assert "not dull</td>" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_sentence_model_is_probed(run, tmp_path):
    output = run("probe_a_sentence_model", "page.html")
    assert "6 layers of 12 heads on 40 inputs" in output
    assert "L0H2: nnz/T = 0.0" in output  # the head that looks at the token before
    own, chance = (float(one) for one in re.search(r"W: ([\d.]+), of random heads ([\d.]+)", output).groups())
    assert own > chance
    assert '<script type="application/json" id="probe">' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_five_optimizers_end_at_five_limits(run, tmp_path):
    output = run("five_optimizers_five_limits", "picture.png")
    assert len(set(re.findall(r"limit (\[.*?\])", output))) == 5
    assert min(numbers(r"best margin ([\d.]+)", output)) > 0.999
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_sign_descent_wins_in_its_own_norm(run):
    output = run("sign_descent")
    in_l2, in_linf = numbers(r"([\d.]+) of the best ℓ2", output), numbers(r"([\d.]+) of the best ℓ∞", output)
    assert in_l2[0] > 0.98 > in_l2[1]
    assert in_linf[1] > 0.98 > in_linf[0]
    assert "SignDescent heads for the p of the least ℓ∞ norm" in output


def test_coordinate_descent_uses_few_coordinates(run):
    output = run("coordinate_descent")
    assert numbers(r"attains ([\d.]+)", output)[0] > 0.98
    sparse, dense, _ = numbers(r"uses (\d+)", output)
    assert sparse < 0.6 * dense


def test_muon_on_w_has_the_largest_spectral_margin(run):
    gradient, plain, with_momentum = numbers(r"([\d.]+) of the best", run("muon_on_w"))
    assert plain > 0.99
    assert gradient < with_momentum < plain


def test_adam_turns_later_in_proportion_to_the_logarithm_of_epsilon(run):
    output = run("adam_two_faces")
    turns = numbers(r"turns at step (\d+)", output)
    assert np.allclose(turns, np.arange(1, 4) * turns[-1] / 3.0, rtol=0.05)
    assert max(numbers(r"([\d.]+) degrees", output)) < 5.0


def test_mirror_descent_has_the_largest_margin_in_its_own_norm(run):
    shares = np.array(numbers(r"  ?(0\.\d+|1\.0000)", run("mirror_descent"))).reshape(3, 3)
    assert np.array_equal(np.argmax(shares, axis=0), np.arange(3))
    assert np.diag(shares).min() > 0.995


def test_training_the_factors_goes_to_the_nuclear_and_the_spectral_norm(run):
    output = run("training_the_factors")
    nuclear, spectral = numbers(r"nuclear ([\d.]+)", output), numbers(r"spectral ([\d.]+),", output)
    assert nuclear[0] > 0.93 > nuclear[1]
    assert spectral[1] > 0.93 > spectral[0]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_is_short_cites_its_statement_and_goes_the_same_way(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert re.match(r"[A-F] (Thm|Fig|ATT-SVM|Assumption)|X-", ast.get_docstring(ast.parse(text)))
    places = [text.find(f"# {word}: ") for word in ("Data", "Solve", "Look", "What to notice")]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_imports_only_what_users_import(path):
    imported = re.findall(
        r"^\s*(?:from|import) (marginlens[\w.]*)", path.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert imported
    assert all(name.count(".") <= 1 for name in imported), imported


def test_every_example_is_run_here():
    tested = set(re.findall(r'run\("(\w+)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested == {path.stem for path in SCRIPTS}
    assert len(tested) >= 6
