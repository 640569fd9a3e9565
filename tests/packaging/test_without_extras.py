"""What an installation without extras can do, and the sentence in which everything else names the extra that it needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import marginlens as ml
from marginlens import errors
from marginlens.papers import registered
from tolerances import HANGING
from typed_pages import ROOT, blocks, is_shown

OPTIONAL = (
    "matplotlib",
    "latex2mathml",
    "sklearn",
    "PIL",
    "pyarrow",
    "pandas",
    "networkx",
    "torch",
    "transformers",
    "tokenizers",
)
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""  # as if none of these packages were installed

LIBRARY = """
import json
import numpy as np
import marginlens as ml
from marginlens.papers import registered

data, v = ml.data.figure_8()
run = ml.descend(data, v, n_steps=200)
solution = ml.att_svm(data, run.selected)
html = run._repr_html_()
print(json.dumps({
    "cosine": float(ml.correlation(run.final, solution.x)),
    "residual": float(np.max(solution.kkt_residual())),
    "theorem": bool(ml.predict_limit(data, v).verdicts),
    "picture": html[html.index("There is no picture"):].split("</p>")[0],
    "graphs": len(ml.priority_graphs(ml.data.figure_2())),
    "lab": ml.lab.lab_page().startswith("<!doctype html>"),
    "claims": len(ml.ledger()),
    "statements": sorted({one.citation for one in registered() if one.module.startswith("marginlens.")}),
}))
"""


def python(source: str, *arguments: str, without: tuple[str, ...] = OPTIONAL) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT.format(without) + source, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGING, check=False)


def test_the_base_install_covers_theory_training_graphs_and_lab():
    done = python(LIBRARY)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cosine"] > 0.9
    assert found["residual"] < 1e-9
    assert (found["theorem"], found["graphs"], found["lab"]) == (True, 2, True)
    assert "marginlens[plot]" in found["picture"]
    assert found["claims"] >= 42
    library = {one.citation for one in registered() if one.module.startswith("marginlens.")}
    assert found["statements"] == sorted(library)


def test_the_library_without_papers_runs_the_readme():
    """Without the package of the papers, by whatever path it would be found."""
    seen = "print(', '.join(ml.predict_limit(*ml.data.figure_8(), optimizer=ml.NormalizedGD(1.0)).bias.observed))"
    (shown,) = (block for block in blocks(ROOT / "README.md") if block.language == "python")
    source = f"import marginlens as ml\n{seen}\n{shown.code}\nimport marginlens_papers"
    done = python(source, without=("marginlens_papers",))
    assert "No module named 'marginlens_papers'" in done.stderr.splitlines()[-1], done.stderr
    cited, _, printed = done.stdout.partition("\n")
    assert "A-F9" in cited
    assert is_shown(shown.shown, printed)


def test_the_command_line_without_papers_omits_their_commands(tmp_path):
    def marginlens(*arguments: str) -> subprocess.CompletedProcess[str]:
        return python("from marginlens_command import main\nmain()", *arguments, without=("marginlens_papers",))

    assert marginlens("samples", str(tmp_path)).returncode == 0
    problem = str(tmp_path / "problem.npz")
    for arguments in (("predict", problem), ("train", problem, "--steps", "20"), ("statement", "A Thm 3")):
        done = marginlens(*arguments)
        assert done.returncode == 0, done.stderr
        assert "marginlens_papers" not in done.stdout + done.stderr
    done = marginlens("reproduce")
    assert done.returncode == 2
    assert "There is no command 'reproduce'" in done.stderr


def test_a_star_import_gives_installed_names():
    done = python("from marginlens import *\nprint(*sorted(set(dir())))")
    assert done.returncode == 0, done.stderr
    assert set(ml.__all__) <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("ml.plotting", "plot"),
        ("import marginlens.plotting.files", "plot"),
        ("ml.priority_graphs(ml.data.figure_2())[1].plot()", "plot"),
        ("ml.ledger().to_frame()", "pandas"),
    ],
)
def test_functions_without_their_extra_name_it(code, extra):
    done = python(f"import marginlens as ml\n{code}")
    *_, last = done.stderr.splitlines()
    assert last.startswith("marginlens.errors.MissingExtra: "), done.stderr
    assert last.endswith(f"install it with pip install 'marginlens[{extra}]'.")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("reproduce", "--quick", "--only", "A-F9"), "report"),
        (("train", "PROBLEM", "--plot", "figure.png"), "plot"),
    ],
)
def test_commands_without_their_extra_exit_with_one_line(words, extra, tmp_path):
    from marginlens.data import figure_8, write_problem

    problem = tmp_path / "problem.npz"
    write_problem(problem, figure_8()[0], head=figure_8()[1])
    files = {"PROBLEM": str(problem), "figure.png": str(tmp_path / "figure.png")}
    done = python(
        "import marginlens_command; marginlens_command.main()",
        *(files.get(word, word) for word in words),
        *(("--out", str(tmp_path / "out")) if words[0] != "train" else ()),
    )
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert f"pip install 'marginlens[{extra}]'." in sentence


@pytest.mark.parametrize("extra", ["probe", "text"])
@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("torch", [True, False])
def test_a_missing_torch_without_gpu_suggests_the_cpu_build(monkeypatch, extra, gpu, torch):
    monkeypatch.setattr(errors, "which", lambda name: "/usr/bin/nvidia-smi" if gpu else None)
    monkeypatch.setattr(errors, "find_spec", lambda name: object() if torch else None)
    sentence = str(errors.missing_extra("transformers", extra, "Loading a model"))
    assert f"pip install 'marginlens[{extra}]'" in sentence
    assert ("install a CPU build of torch first" in sentence) == (extra == "probe" and not gpu and not torch)
