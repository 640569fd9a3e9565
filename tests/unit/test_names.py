"""Names of optimizers, losses and norms: one rule, one table, and spellings of earlier versions."""

import inspect
import json
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import marginlens as ml
from marginlens import names
from marginlens.losses import Loss, NextTokenLoss
from marginlens.names import EARLIER, LOSSES, NEXT_TOKEN_LOSSES, NORMS, OPTIMIZERS, kebab
from marginlens.norms.choice import norm_name, norm_named
from marginlens.optimizers import Optimizer
from marginlens.optimizers.choice import optimizer_named
from refusals import refused

FAMILIES = [OPTIMIZERS, LOSSES, NEXT_TOKEN_LOSSES, NORMS]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=["optimizers", "losses", "next-token", "norms"])
WITHOUT_A_NAME = {
    "Blockwise",
    "Decaying",
    "Optimizer",
    "PowerDecay",
    "Loss",
    "NextTokenLoss",
    "LabelLoss",
    "Norm",
    "Lp",
}
SPELLINGS = {
    "NormalizedGD": "normalized-gd",
    "GradientDescent": "gradient-descent",
    "SignDescent": "sign-descent",
    "Muon": "muon",
    "CorrelationLoss": "correlation-loss",
    "CrossEntropy": "cross-entropy",
    "L2": "l2",
    "LInf": "l-inf",
    "MaxRow": "max-row",
}


def test_a_name_is_the_class_name_in_kebab_case():
    assert {name: kebab(name) for name in SPELLINGS} == SPELLINGS
    listed = [name for family in FAMILIES for name in family.names]
    assert listed == [kebab(name) for family in FAMILIES for name in family.classes]
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize("module", ["optimizers", "losses", "norms"])
def test_every_class_of_a_package_has_a_name(module):
    package = import_module(f"marginlens.{module}")
    classes = {name for name in package.__all__ if inspect.isclass(getattr(package, name))}
    named = {name for family in FAMILIES if family.module == package.__name__ for name in family.classes}
    assert classes - WITHOUT_A_NAME == named


@every_family
def test_a_word_is_a_name_or_a_class_name(family):
    for class_name, name in zip(family.classes, family.names, strict=True):
        kind = getattr(import_module(family.module), class_name)
        assert family.name(name) == family.name(class_name) == family.name(f" {name.upper()} ") == name
        assert family.class_named(name) is kind
        assert issubclass(kind, {"optimizer": Optimizer, "norm": ml.Norm}.get(family.argument, (Loss, NextTokenLoss)))


def test_earlier_spellings_map_to_names_without_collision():
    for word, name in EARLIER.items():
        families = [family for family in FAMILIES if name in family.names]
        assert len(families) == 1
        assert families[0].name(word) == name
        assert all(word not in family.names for family in FAMILIES)


@every_family
@pytest.mark.parametrize("word", ["", "ngdd", "hinge", 3, None, "l0.5"])
def test_unknown_names_are_refused(family, word):
    with refused(family.argument):
        family.name(word)


def test_an_unknown_name_suggests_the_nearest():
    with refused("optimizer"):
        OPTIMIZERS.name("normalised-gd")


def test_a_subclass_has_no_name():
    class Mine(ml.Logistic):
        """A loss of a user."""

    class Logistic(ml.Logistic):
        """A loss of a user with a name that is taken."""

    assert LOSSES.name_of(ml.Logistic()) == "logistic"
    for loss in (Mine(), Logistic(), ml.LogLoss()):
        with refused("loss"):
            LOSSES.name_of(loss)


OPTIMIZERS_BY_NAME = {
    "normalized-gd": ml.NormalizedGD(0.5),
    "gd": ml.GradientDescent(0.5),
    "sign": ml.SignDescent(0.5),
    "muon": ml.Muon(0.5),
    "Adam": ml.Adam(0.5),
    "steepest-descent:l3": ml.SteepestDescent(ml.Lp(3.0), 0.5),
    "steepest-descent:max-row": ml.SteepestDescent(ml.MaxRow(), 0.5),
    "l3": ml.SteepestDescent(ml.Lp(3.0), 0.5),
    "linf": ml.SteepestDescent(ml.LInf(), 0.5),
    "mirror-descent:l3": ml.MirrorDescent(3.0, 0.5, normalized=True),
    "mirror:l2": ml.MirrorDescent(2.0, 0.5, normalized=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS_BY_NAME)
def test_optimizers_are_found_by_name(name):
    assert repr(optimizer_named(name, 0.5)) == repr(OPTIMIZERS_BY_NAME[name])
    word, _, norm = name.partition(":")
    if norm:
        assert repr(optimizer_named(word, 0.5, norm)) == repr(OPTIMIZERS_BY_NAME[name])


@pytest.mark.parametrize(
    "name", ["mirror-descent:l-inf", "mirror-descent", "adam:l2", "steepest-descent:", "l0.5", ":l2"]
)
def test_optimizers_without_their_norm_are_refused(name):
    with refused("optimizer"):
        optimizer_named(name, 0.5)
    with refused("norm"):
        optimizer_named("mirror-descent", 0.5, "spectral")


def test_norms_are_found_by_their_names():
    for norm in (ml.L1(), ml.L2(), ml.LInf(), ml.Lp(1.75), ml.Lp(1e20), ml.Frobenius(), ml.Nuclear(), ml.MaxRow()):
        assert norm_named(norm_name(norm)) == norm


def test_files_with_earlier_names_are_read(tmp_path):
    """A margin solution in ℓ∞ and a certificate as the first version wrote them, with "linf" and "Logistic"."""
    data, head = ml.data.figure_8()
    solution = ml.att_svm(data, data.optimal(head), norm=ml.LInf())
    certificate = ml.certify(data, head, 40.0 * ml.att_svm(data, data.optimal(head)).x, optimizer=ml.NormalizedGD(0.1))
    for result, entry, before in ((solution, "norm", "linf"), (certificate, "loss", "Logistic")):
        place = tmp_path / f"{entry}.npz"
        result.save(place)
        arrays = dict(np.load(place))
        assert str(arrays[entry]) in (*NORMS.names, *LOSSES.names)
        np.savez(place, **{**arrays, entry: np.array(before)})
        assert getattr(type(result).load(place), entry) == getattr(result, entry)


def test_names_are_listed_without_numpy():
    code = "import sys, json, marginlens.names; print(json.dumps([name for name in sys.modules if 'numpy' in name]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
    assert inspect.getdoc(names)
