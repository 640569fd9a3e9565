"""Subclasses of optimizers that take steps of their own: no theorem or claim about the class is cited for them."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.theory import implicit_bias
from marginlens.theory.unproved_steps import redefines_steps

DATA, HEADS = ml.data.sphere_tokens(1, 2, 3, 4, np.random.default_rng(0))
OF_P = ml.AttentionRisk(DATA[0], HEADS[0])
QUERY = np.array([1.0, 0.5])
RISKS = {"p": OF_P, "W": OF_P.as_matrix(QUERY), "Q and K": OF_P.as_factors(QUERY, 2)}
SEQUENCES = ml.NextTokenRisk(ml.data.acyclic_sequences(6, 8, 4, 4, 1))
KINDS = {
    ml.GradientDescent: (0.01,),
    ml.NormalizedGD: (0.1,),
    ml.SignDescent: (0.1,),
    ml.CoordinateDescent: (0.1,),
    ml.SteepestDescent: (ml.L2(), 0.1),
    ml.MirrorDescent: (3.0, 0.1),
    ml.Adam: (0.1,),
}


def halved(kind):
    """A subclass of the user, whose steps are half as long."""

    class Halved(kind):
        def update(self, gradient, state):
            move, state = super().update(gradient, state)
            return 0.5 * move, state

    return Halved


def renamed(kind):
    """A subclass of the user that changes nothing."""

    class Renamed(kind):
        pass

    return Renamed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_only_an_unchanged_subclass_uses_the_steps_of_its_class(kind):
    settings = KINDS[kind]
    assert not redefines_steps(kind(*settings))
    assert not redefines_steps(renamed(kind)(*settings))
    assert redefines_steps(halved(kind)(*settings))


@pytest.mark.parametrize("variable", RISKS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_theorem_is_cited_for_user_steps(kind, variable):
    settings, risk = KINDS[kind], RISKS[variable]
    its, same = (implicit_bias(subclass(*settings), risk) for subclass in (kind, renamed(kind)))
    assert (same.norm, same.proved, same.proved_of_linear_models) == (its.norm, its.proved, its.proved_of_linear_models)
    assert implicit_bias(halved(kind)(*settings), risk) is None
    prediction = ml.predict(risk, optimizer=halved(kind)(*settings))
    assert prediction.bias is None
    assert prediction.direction is None
    assert "no theorem or claim is about Halved" in prediction.why.replace("No", "no")


def test_the_next_token_theorem_does_not_cover_user_steps():
    def of_descent(optimizer):
        return next(v for v in ml.predict(SEQUENCES, optimizer=optimizer).verdicts if v.citation == "C Thm 3")

    assert of_descent(ml.GradientDescent(1e-3)).applies
    assert not of_descent(halved(ml.GradientDescent)(1e-3)).applies
    assert ml.predict(SEQUENCES, optimizer=halved(ml.GradientDescent)(1e-3)).bias is None


def test_a_subclass_with_a_stated_norm_has_that_norm_without_theorem():
    class Mine(halved(ml.SignDescent)):
        norm = ml.LInf()

        def update(self, gradient, state):
            return super().update(gradient, state)

    bias = implicit_bias(Mine(0.1), OF_P)
    assert bias.norm == ml.LInf()
    assert not any((bias.proved, bias.proved_of_linear_models, bias.observed))
    assert bias.note.code == "bias.own_norm"
