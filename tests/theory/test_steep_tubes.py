"""X Theorem 1 for losses with poles: every inequality of its proof at points of tubes, runs that stay in them, and refusals."""

import mpmath as mp
import numpy as np
import pytest

import marginlens as ml
from marginlens.theory import certify
from refusals import refused

RULES = [None, ml.NormalizedGD(0.4), ml.NormalizedGD(1.5), ml.GradientDescent(0.8)]
LOSSES = [ml.LogProbability(), ml.ArcsineLoss()]
BY_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)


def drawn(rng, loss):
    """A problem whose best tokens score 1, with offsets for every other one, and a point of a run on it."""
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 6))
    keys, scores = rng.normal(size=(n, T, d)), np.zeros((n, T))
    if rng.random() < 0.6:
        scores = rng.uniform(size=(n, T)) * rng.integers(0, 2, (n, T))
    scores[np.arange(n), rng.integers(T, size=n)] = 1.0
    offsets = rng.normal(size=(n, T)) if rng.random() < 0.5 else None
    risk = ml.SoftmaxRisk(keys, scores, offsets, loss)
    run = ml.descend(risk, optimizer=ml.NormalizedGD(0.2), n_steps=int(rng.integers(100, 2_000)))
    return risk, run.final


def proofs(rng, loss, count, rule=None):
    """Certificates at points of runs, with the rule they are for."""
    while count:
        risk, point = drawn(rng, loss)
        optimizer = RULES[rng.integers(len(RULES))] if rule is None else rule
        try:
            yield certify(risk.data, risk.head, point, optimizer=optimizer, loss=loss)
        except ml.InputError:
            continue
        count -= 1


class Exactly:
    """A tube of the arcsine and the terms of the gradient, in the digits in force, straight from the definitions of the proof."""

    def __init__(self, proof):
        data, scores, self.n = proof.data, proof.data.scores(proof.head), proof.data.n_inputs
        self.rows = [
            (i, t)
            for i in range(self.n)
            for t in range(data.lengths[i])
            if t != proof.selected[i] and len(set(scores[i])) > 1
        ]
        chosen = proof.selected
        self.a = np.array([data.K[i, chosen[i]] - data.K[i, t] for i, t in self.rows])
        self.lead = np.array([data.offsets[i, chosen[i]] - data.offsets[i, t] for i, t in self.rows])
        self.delta = np.array([1.0 - scores[i, t] for i, t in self.rows])
        self.of = np.array([i for i, _ in self.rows])
        self.S = np.array([list(row) in proof.support.tolist() for row in self.rows])
        x = np.linalg.pinv(self.a[self.S]) @ np.ones(self.S.sum())
        self.theta, self.ray = 1.0 / np.linalg.norm(x), x / np.linalg.norm(x)
        self.lam = np.zeros(len(self.rows))
        self.lam[self.S] = np.linalg.pinv(self.a[self.S].T) @ self.ray
        self.mass = np.bincount(self.of, self.lam, self.n)
        rho = np.log(self.delta / (self.n**2 * np.where(self.S, self.lam * self.mass[self.of], 1.0))) - self.lead
        self.level = self.theta * self.lam[self.S] @ rho[self.S]
        self.anchor = np.linalg.pinv(self.a[self.S]) @ (rho[self.S] - self.level)
        self.along = self.a @ self.ray
        self.beside = self.a - np.outer(self.along, self.ray)

    def betas(self, p):
        """β_r of every row at p, with the mp numbers in force."""
        gaps = [
            mp.fsum(mp.mpf(x) * mp.mpf(y) for x, y in zip(a, p, strict=True)) + e
            for a, e in zip(self.a, self.lead, strict=True)
        ]
        found = []
        for r, i in enumerate(self.of):
            own = [mp.exp(-gaps[s]) for s in np.flatnonzero(self.of == i)]
            share = 1 / (1 + mp.fsum(own))
            delta = share * mp.fsum(x * mp.mpf(y) for x, y in zip(own, self.delta[self.of == i], strict=True))
            found.append(
                share * mp.exp(-gaps[r]) * (mp.mpf(self.delta[r]) - delta) / mp.sqrt(delta * (1 - delta)) / self.n
            )
        return found


@pytest.mark.statement("X Thm 1")
def test_every_inequality_for_the_arcsine_holds_in_its_tubes():
    """At random points of the tube, most of them on its wall: the mass (17), rows beyond (18), the drift (19), and one step (12)."""
    rng = np.random.default_rng(51)
    for proof in proofs(rng, ml.ArcsineLoss(), 60):
        at, R = Exactly(proof), proof.radius
        kappa, wide = proof.growth / (2.0 * R), np.linalg.norm(at.beside, axis=1)
        sigma = np.where(at.S, 0.0, at.along - at.theta)
        to_anchor = at.a @ at.anchor + at.lead
        for _ in range(6):
            x = rng.choice([0.0, rng.exponential(2.0), rng.exponential(40.0)])
            away = rng.normal(size=len(at.ray))
            away -= (away @ at.ray) * at.ray
            if not np.linalg.norm(away) > 1e-9:
                away = 0.0 * away
            else:
                away *= (R + kappa * x) * rng.choice([1.0, rng.random()]) / np.linalg.norm(away)
            P = proof.along + x
            p = P * at.ray + at.anchor + away
            with mp.workdps(60):
                beta = at.betas(p)
                B = mp.fsum(b for b, carries in zip(beta, at.S, strict=True) if carries)
                ratio = np.array([float(b / B) for b in beta])  # relative to the mass
                log_B = float(mp.log(B))
            near = np.exp(wide * R - at.along * proof.along - to_anchor)
            eps = np.bincount(at.of, near, at.n) * np.exp(-(at.along - wide * kappa).min() * x)
            top = np.array([at.delta[at.of == i].max(initial=0.0) for i in range(at.n)])
            added = np.zeros(at.n)
            for r in np.flatnonzero(~at.S & (at.delta > 0.0) & (at.mass[at.of] > 0.0)):
                i = at.of[r]
                gap = np.linalg.norm(at.beside[r] - at.lam[at.of == i] @ at.beside[at.of == i] / at.mass[i])
                share = at.delta[r] / (at.n * at.mass[i]) ** 2
                added[i] += share * np.exp(gap * (R + kappa * x) - at.level - sigma[r] * P - to_anchor[r])
            mu = 0.5 * added.max() + max(
                -0.5 * np.log1p(-eps[i]) - np.log1p(-eps[i] * top[i] / d)
                for i, d in zip(at.of[at.S], at.delta[at.S], strict=True)
            )
            blur = 1e-7 * (1.0 + abs(log_B)) + 1e-14 * np.linalg.norm(away)
            assert log_B >= -mu - np.log(at.theta) + 0.5 * (at.level - at.theta * P) - blur
            eps_0 = np.bincount(at.of, near, at.n)
            size = np.maximum(np.sqrt(at.delta), (eps_0 * np.sqrt(top))[at.of]) / at.n
            tau = at.theta * size * np.exp(0.5 * (wide * (R + kappa * x) - at.level - sigma * P - to_anchor) + mu)
            assert np.all(np.abs(ratio[~at.S]) <= tau[~at.S] * (1.0 + blur))
            gain = float(at.along @ ratio)
            theta_ = at.theta - np.sum((tau * at.along)[~at.S])
            assert gain >= theta_ * (1.0 - blur)
            drift = float((at.beside @ away) @ ratio)
            share = at.lam[at.S] * at.theta
            KL = float(np.sum(ratio[at.S] * np.log(ratio[at.S] / share)))
            E = 2.0 * mu + np.sum((tau * wide)[~at.S]) * (R + kappa * x)
            assert drift <= E - KL + blur * (1.0 + np.linalg.norm(away))
            aside, h = ratio @ at.beside, getattr(proof.optimizer, "size", 0.0)
            if isinstance(proof.optimizer, ml.NormalizedGD):
                total = np.hypot(gain, np.linalg.norm(aside))
                after, moved = away + h * aside / total, h * gain / total
                e = np.sum((tau * wide)[~at.S])
                D = max(np.linalg.norm(b - c) for b in at.beside for c in at.beside)
                A2 = max(D**2 / (4.0 * (1.0 - proof.share)), proof.progress / h)
                most = proof.growth + (2.0 * E + e**2 / (A2 * proof.share)) / proof.progress
                assert after @ after - away @ away <= most * moved + 1e-6 * (1.0 + away @ away)


@pytest.mark.statement("X Thm 1")
@BY_LOSS
def test_runs_from_proved_points_end_as_proved(loss):
    rng = np.random.default_rng(52)
    for proof in proofs(rng, loss, 40, rule=ml.NormalizedGD(0.5)):
        risk = ml.SoftmaxRisk(
            proof.data.K, np.where(proof.data.mask, proof.data.scores(proof.head), 0.0), proof.data.offsets, loss
        )
        run = ml.descend(risk, optimizer=proof.optimizer, n_steps=4_000, start=proof.point)
        np.testing.assert_array_equal(run.selected, proof.selected)
        before, after = (ml.correlation(p, proof.direction) for p in (proof.point, run.final))
        assert 1.0 - after <= max(1e-12, 0.5 * (1.0 - before))


@pytest.mark.statement("X Thm 1")
@BY_LOSS
def test_certificates_are_verified_saved_and_predicted(loss, tmp_path):
    rng = np.random.default_rng(53)
    for proof in proofs(rng, loss, 6):
        assert proof.verify().applies
        proof.save(tmp_path / "tube.npz")
        again = ml.Certificate.load(tmp_path / "tube.npz")
        assert type(again.loss) is type(loss)
        assert again.verify().applies
    data, v = ml.data.scored_tokens(np.random.default_rng(1).normal(size=(3, 4, 8)), np.eye(4)[[0, 1, 2]])
    found = ml.predict_limit(data, v, loss=loss, optimizer=ml.NormalizedGD(0.5))
    assert found.outcome.proved
    assert found.outcome.selected.tolist() == [0, 1, 2]


def test_the_arcsine_is_refused_where_no_theorem_covers_it():
    data, v = ml.data.scored_tokens(np.random.default_rng(2).normal(size=(2, 3, 6)), [[1.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
    point = 30.0 * ml.att_svm(data, [0, 0]).x
    with refused("point") as caught:
        certify(data, v, point, loss=ml.ArcsineLoss())
    assert "less than 1" in str(caught.value)
    with refused("loss"):
        certify(data, v, point, loss=ml.ArcsineLoss(), optimizer=ml.SignDescent(0.01))
    found = ml.predict_limit(data, v, loss=ml.ArcsineLoss(), optimizer=ml.SignDescent(0.01))
    assert "ArcsineLoss" in str(found)
    assert not getattr(found.outcome, "proved", False)
