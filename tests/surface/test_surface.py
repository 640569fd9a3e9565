"""The public surface: a name that comes or goes is a decision, and this list is where it is taken."""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import marginlens as ml
from marginlens.removed import removed_names
from refusals import raised

PACKAGES = (
    "data dynamics embeddings errors graphs lab losses nexttoken norms optimizers plotting probe risk svm sweeps theory"
)
NAMES = """
ArcsineLoss AttentionRisk Cone CorrelationLoss CrossEntropy Exponential Frobenius GradientDescent InputError JointRisk L1 L2
LInf Lp MaxRow Nuclear Spectral Adam CoordinateDescent MirrorDescent Muon SignDescent SteepestDescent
LogLoss LogProbability Logistic MarginSolution NextTokenAutomaton
NextTokenRisk Norm NormalizedGD Optimizer Path Prediction Record Risk Sampling SequenceDataset
SquaredLoss Status TokenDataset Trajectory UntilLength UntilNorm angle att_svm basin_cone correlation cyclic_correction cyclic_subset
descend flow graph_svm label_svm least_distance ledger locally_optimal_directions path predict predict_limit priority_graphs relaxed_svm
SoftmaxRisk ContextDataset ContextRisk ntp_svm set_svm sweep token_optimality token_statistics vocabulary_svm Certificate certify
"""
ONE_WORD_EACH = {
    "ds": "data",
    "v": "head",
    "limit": "max_problems",
    "seed": "rng",
    "selection": "selected",
}


def test_the_top_level_has_the_listed_names():
    assert sorted(ml.__all__) == sorted(NAMES.split())
    for name in (*NAMES.split(), *PACKAGES.split()):
        assert getattr(ml, name) is not None


def test_top_level_names_are_exactly_those_of_their_modules():
    """In a fresh interpreter, where nothing else has been imported: no module of Python takes the place of a public name."""
    program = """if True:
        import ast, importlib, inspect
        import marginlens as ml
        seen = set(dir(ml))
        with open(ml.__file__ + "i", encoding="utf-8") as file:
            homes = {a.name: s.module for s in ast.parse(file.read()).body if isinstance(s, ast.ImportFrom) for a in s.names}
        installed = [name for name in homes if name in ml.__all__ or homes[name] == "marginlens"]
        for name in installed:
            home = homes[name]
            value = importlib.import_module(f"marginlens.{name}") if home == "marginlens" else getattr(importlib.import_module(home), name)
            assert getattr(ml, name) is value, name
            assert inspect.getmodule(value).__name__.startswith("marginlens"), name
        assert {name for name in seen if not name.startswith("__")} == set(homes) == {n for n in dir(ml) if not n.startswith("__")}
        public = {}
        exec("from marginlens import *", public)
        assert {name for name in public if name != "__builtins__"} == set(ml.__all__)
        assert all(public[name] is getattr(ml, name) for name in ml.__all__)
    """
    subprocess.run([sys.executable, "-c", program], check=True)
    path = ml.path(ml.TokenDataset([[[1.0], [0.0]]], [1.0]), 1.0, head=[1.0], restarts=0)
    assert isinstance(path, ml.Path)


def test_equal_arguments_have_equal_names():
    packages = [getattr(ml, name) for name in PACKAGES.split() if name not in ("errors", "plotting")]
    functions = {
        f"{package.__name__}.{name}": getattr(package, name) for package in packages for name in package.__all__
    }
    functions |= {f"ml.{name}": getattr(ml, name) for name in NAMES.split()}
    wrong = [
        f"{place}({argument}) says {argument} for {ONE_WORD_EACH[argument]}"
        for place, function in functions.items()
        if inspect.isfunction(function)
        for argument in inspect.signature(function).parameters
        if argument in ONE_WORD_EACH
        and "embeddings" not in place  # where v is a parameter that is trained
        and not (argument == "seed" and place.endswith("_problems"))  # made by counter, for which there is no generator
    ]
    assert not wrong, "\n".join(wrong)


def test_the_ledger_lists_the_claims_of_the_papers():
    ledger = ml.ledger()
    assert len(ledger) >= 42
    assert ledger["A-F9"].id == "A-F9"
    assert all(claim.label and claim.statement for claim in ledger)


def test_file_and_class_names_are_unique():
    root = Path(ml.__file__).parent
    names = [path.stem for path in root.glob("*.py")] + [path.name for path in root.iterdir() if path.is_dir()]
    assert len(names) == len(set(names))
    packages = [getattr(ml, name) for name in PACKAGES.split() if name not in ("errors", "plotting")]
    homes = {}
    for package in packages:
        for name in package.__all__:
            value = getattr(package, name)
            if inspect.isclass(value):
                homes.setdefault(name, set()).add(f"{value.__module__}.{value.__qualname__}")
    assert not {name: places for name, places in homes.items() if len(places) > 1}


@pytest.mark.parametrize("full_name", removed_names())
def test_a_removed_name_names_its_replacement(full_name):
    home, _, name = full_name.rpartition(".")
    module = importlib.import_module(home)
    with raised(AttributeError, name, home, removed_names()[full_name]):
        getattr(module, name)
    assert name not in dir(module)
    with raised(AttributeError, f"never_{name}"):
        getattr(module, f"never_{name}")


def test_replacements_of_removed_names_exist():
    """Every full name in the table's sentences can be found."""
    for instead in removed_names().values():
        for full_name in re.findall(r"marginlens(?:\.\w+)+", instead):
            value = ml
            for name in full_name.split(".")[1:]:
                value = getattr(value, name)


def test_coupled_weight_decay_names_its_replacement():
    for optimizer in (ml.Adam, ml.GradientDescent, ml.Muon, ml.NormalizedGD, ml.SignDescent):
        with raised(TypeError, optimizer.__name__, "coupled"):
            optimizer(0.1, weight_decay=0.2, coupled=True)
