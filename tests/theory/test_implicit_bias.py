"""Predictions by optimizer: which norm's margin a run heads for, who proves it, and that runs do go there."""

from dataclasses import dataclass

import numpy as np
import pytest

import marginlens as ml
from marginlens.optimizers import Blockwise, PowerDecay
from marginlens.theory import implicit_bias


def problem(n_inputs=3, n_tokens=4, d=5):
    data, v = ml.data.sphere_tokens(1, n_inputs, n_tokens, d, 0)
    queries = np.random.default_rng(1).normal(size=(n_inputs, 4))
    return ml.AttentionRisk(data[0], v[0]), queries


ON_VECTORS = {
    ml.GradientDescent(0.1): ml.L2(),
    ml.NormalizedGD(0.1): ml.L2(),
    ml.PolyakStep(): ml.L2(),
    ml.SignDescent(0.1): ml.LInf(),
    ml.SignDescent(0.1, momentum=0.9): ml.LInf(),
    ml.CoordinateDescent(0.1): ml.L1(),
    ml.SteepestDescent(ml.Lp(3), 0.1): ml.Lp(3),
    ml.Adam(0.1): ml.LInf(),
    ml.Adam(0.1, eps=1e-8): ml.L2(),
    ml.MirrorDescent(1.75, 0.1): ml.Lp(1.75),
    ml.MirrorDescent(2, 0.1): ml.L2(),
}


@pytest.mark.statement("X N2", "X N5")
@pytest.mark.parametrize(("optimizer", "norm"), ON_VECTORS.items(), ids=repr)
def test_every_optimizer_of_p_has_its_norm(optimizer, norm):
    risk, _ = problem()
    prediction = ml.predict(risk, optimizer=optimizer)
    bias = prediction.bias
    assert bias.norm == norm
    assert bias.variable == "p"
    assert np.array_equal(bias.selected, risk.data.optimal(risk.head))
    if not isinstance(optimizer, ml.GradientDescent):
        assert prediction.direction is None  # no theorem that is checked here covers it
        assert str(bias) in str(prediction)
    assert norm.value(bias.direction) == pytest.approx(1.0, rel=1e-9)
    rows, _ = risk.margin_rows(bias.selected)
    assert (rows @ bias.direction).min() == pytest.approx(bias.solution.margin, rel=1e-6)


ON_MATRICES = {
    ml.GradientDescent(0.1): ml.Frobenius(),
    ml.SignDescent(0.1): ml.LInf(),
    ml.Muon(0.1): ml.Spectral(),
    ml.Muon(0.1, momentum=0.0, nesterov=False): ml.Spectral(),
    ml.SteepestDescent(ml.Nuclear(), 0.1): ml.Nuclear(),
    ml.SteepestDescent(ml.MaxRow(), 0.1): ml.MaxRow(),
}


@pytest.mark.statement("X N1")
@pytest.mark.parametrize(("optimizer", "norm"), ON_MATRICES.items(), ids=repr)
def test_every_optimizer_of_w_has_its_norm(optimizer, norm):
    of_p, queries = problem()
    risk = of_p.as_matrix(queries)
    bias = ml.predict(risk, optimizer=optimizer).bias
    assert bias.norm == norm
    assert bias.variable == "W"
    if not isinstance(norm, ml.MaxRow):
        assert bias.direction.shape == risk.shape
        assert norm.value(bias.direction) == pytest.approx(1.0, rel=1e-9)
        rows, _ = risk.margin_rows(bias.selected)
        products = np.einsum("rqd,qd->r", rows, bias.direction)
        assert products.min() == pytest.approx(bias.solution.margin, rel=1e-6)


def test_factors_have_the_norm_of_their_product():
    of_p, queries = problem()
    risk = of_p.as_factors(queries, 3)
    for optimizer, norm in {
        ml.GradientDescent(0.1): ml.Nuclear(),
        Blockwise(ml.NormalizedGD(0.1)): ml.Nuclear(),
        Blockwise(ml.Muon(0.1)): ml.Spectral(),
        Blockwise(ml.SteepestDescent(ml.Frobenius(), 0.1)): ml.Nuclear(),
        Blockwise(ml.SignDescent(0.1)): None,
        ml.Adam(0.1): None,
    }.items():
        bias = ml.predict(risk, optimizer=optimizer).bias
        assert bias.norm == norm
        assert bias.variable == "W = Q Kᵀ"
        assert ("known" in str(bias)) == (norm is None)
    assert "max(|Q|∞, |K|∞)" in str(ml.predict(risk, optimizer=ml.SignDescent(0.1)).bias)


def test_what_is_proved_and_what_is_only_seen():
    risk, queries = problem()

    def sentence(optimizer, of=risk):
        return str(implicit_bias(optimizer, of))

    assert "A Thms 2 and 3" in sentence(ml.GradientDescent(0.1))
    assert "D (arXiv 2308.16898)" in sentence(ml.GradientDescent(0.1), risk.as_matrix(queries))
    assert "Thm 1, for linear models" in sentence(ml.SignDescent(0.1))
    assert "On attention seen, not proved, by claim X-N2" in sentence(ml.SignDescent(0.1))
    assert "Thm 2, with momentum" in sentence(ml.Muon(0.1), risk.as_matrix(queries))
    assert "no claim of the ledger" in sentence(ml.Muon(0.1), risk.as_matrix(queries))
    assert "E (arXiv 2410.14581)" in sentence(ml.MirrorDescent(3, 0.1))
    assert "near that of the least ℓ∞ norm" in sentence(ml.Adam(0.1, eps=1e-8))
    assert "regularisation path of the factors" in sentence(ml.GradientDescent(0.1), risk.as_factors(queries, 2))


@pytest.mark.parametrize(
    "optimizer",
    [
        ml.NormalizedGD(0.02),
        ml.SteepestDescent(ml.Lp(3), 0.02),
        ml.SignDescent(0.01),
        ml.CoordinateDescent(0.1),
        ml.Adam(0.01, (0.9, 0.95)),
        ml.MirrorDescent(1.75, 0.1, normalized=True),
    ],
    ids=repr,
)
def test_runs_attain_the_margin_that_is_predicted(optimizer):
    """The share of the best margin in the norm of the bias, for the tokens that the run selects."""
    risk, _ = problem()
    run = ml.descend(risk, optimizer=optimizer, n_steps=10_000)
    bias = implicit_bias(optimizer, risk, selected=run.selected)
    assert bias.direction is not None
    rows, _ = risk.margin_rows(run.selected)
    share = (rows @ run.final).min() / bias.norm.value(run.final) / bias.solution.margin
    assert 0.98 < share <= 1.0 + 1e-8


def test_a_start_says_which_tokens():
    risk, _ = problem()
    start = np.random.default_rng(2).normal(size=5)
    prediction = ml.predict(risk, start=start, optimizer=ml.MirrorDescent(3, 0.1))
    assert np.array_equal(prediction.bias.selected, risk.select(start))
    batch, heads = ml.data.sphere_tokens(3, 2, 3, 4, 0)
    found = ml.predict_limit(batch, heads, optimizer=ml.NormalizedGD(0.1))
    assert len({str(each.bias.selected.tolist()) for each in found}) > 1


def test_optimizers_and_risks_of_which_nothing_is_known():
    @dataclass(frozen=True)
    class Halving:
        def init(self, x0):
            return None

        def update(self, gradient, state):
            return -0.5 * gradient.value(), None

    risk, queries = problem()
    assert ml.predict(risk, optimizer=Halving()).bias is None
    assert ml.predict(risk.as_factors(queries, 2), optimizer=Halving()).bias is None
    assert ml.predict(risk).bias is None
    assert implicit_bias(ml.SignDescent(0.1), ml.JointRisk(risk.data)) is None


def test_norms_that_do_not_fit_are_refused_in_one_sentence():
    risk, _ = problem()
    with pytest.raises(ml.InputError, match="'optimizer' argument must be one whose norm measures vectors; got Muon"):
        ml.predict(risk, optimizer=ml.Muon(0.1))
    with pytest.raises(ml.InputError, match="'risk' argument must be of one problem"):
        implicit_bias(ml.SignDescent(0.1), ml.AttentionRisk(*ml.data.sphere_tokens(3, 2, 3, 4, 0)))


def test_claims_that_are_cited_are_in_the_ledger():
    risk, queries = problem()
    cited = {
        claim
        for of in (risk, risk.as_matrix(queries), risk.as_factors(queries, 2))
        for optimizer in (*ON_VECTORS, *(ON_MATRICES if of is not risk else ()))
        for claim in implicit_bias(optimizer, of).observed
    }
    assert len(cited) > 3
    assert cited <= {claim.id for claim in ml.ledger()}


def classes(separable=True):
    rng = np.random.default_rng(4)
    means = 3.0 * rng.normal(size=(3, 4))
    labels = np.arange(12) % 3
    points = means[labels] + 0.1 * rng.normal(size=(12, 4))
    if not separable:
        points[1] = points[0]  # one point with two classes
    return ml.risk.MulticlassRisk(points, labels)


@pytest.mark.statement("F Thm 1", "F Thm 2")
@pytest.mark.parametrize("norm", [ml.L1(), ml.LInf(), ml.Lp(3), ml.Frobenius(), ml.Spectral(), ml.Nuclear()], ids=repr)
def test_the_theorems_of_f_on_linear_classifiers(norm):
    risk, steps = classes(), PowerDecay(0.5, 0.5)
    for momentum, theorem in ((0.0, "F Thm 1"), (0.9, "F Thm 2")):
        prediction = ml.predict(risk, optimizer=ml.SteepestDescent(norm, steps, momentum))
        assert prediction.verdicts[0].citation == theorem
        assert prediction.verdicts[0].applies
        assert prediction.why.startswith("Certain")
    run = ml.descend(risk, optimizer=ml.SteepestDescent(norm, steps), n_steps=200)
    best = prediction.bias.solution
    gaps = [1.0 - risk.margins(x).min() / norm.value(x) / best.margin for x in (run.final, run.resume(600).final)]
    assert gaps[1] >= -1e-9
    assert gaps[1] <= 0.75 * max(gaps[0], 1e-3)  # four times the steps: half the gap, but for logarithms
    if isinstance(norm, ml.Frobenius):
        assert np.allclose(prediction.direction, best.direction)


def test_where_the_theorems_of_f_do_not_apply():
    steps = PowerDecay(0.5, 0.5)
    constant = ml.predict(classes(), optimizer=ml.SignDescent(0.1))
    assert "does not fall like t^-1/2" in constant.why
    ahead = ml.predict(classes(), optimizer=ml.Muon(steps))
    assert "with Nesterov's look-ahead" in ahead.why
    rows = ml.predict(classes(), optimizer=ml.SteepestDescent(ml.MaxRow(), steps))
    assert "is no entrywise or Schatten norm" in rows.why
    mixed = ml.predict(classes(separable=False), optimizer=ml.SignDescent(steps))
    assert "no W classifies every point" in mixed.why
    assert ml.predict(classes(), optimizer=ml.Adam(0.1)).bias.norm == ml.LInf()
    assert "give optimizer=" in ml.predict(classes()).why
