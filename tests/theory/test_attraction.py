"""X Theorems 1 and 2: every inequality of their proofs on random problems, runs that stay in tubes, and certificates that can fail."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.random_tokens import scored_tokens
from marginlens.losses import CorrelationLoss, Exponential, Logistic
from marginlens.theory import Certificate, MinimumCertificate, certify
from marginlens.theory.attraction import Missing, find_tubes
from refusals import refused

SHAPES = ((1, 4, 2), (2, 5, 3), (3, 5, 10), (4, 6, 30))


def points_around_directions(shape, count, rng):
    """Problems and points in all states of saturation around max-margin directions of tokens that short runs select."""
    data, v = ml.data.sphere_tokens(count, *shape, rng)
    solved = ml.att_svm(data, ml.descend(data, v, start=rng.standard_normal((count, shape[2])), n_steps=60).selected)
    ok = np.array([status is ml.Status.OPTIMAL for status in solved.status])
    data, v, x = data[ok], v[ok], solved.x[ok]
    along = 10.0 ** rng.uniform(0.5, 2.2, (len(x), 1))
    beside = rng.standard_normal(x.shape) * 10.0 ** rng.uniform(-1.0, 1.0, (len(x), 1))
    return data, v, along * x / np.linalg.norm(x, axis=-1, keepdims=True) + beside


class Reference:
    """The quantities of the proof at the worst of a tube and at its points, straight from their definitions."""

    def __init__(self, data, v, tubes, j, slope=1.0):
        selected, self.direction, self.anchor = tubes.selected[j], tubes.direction[j], tubes.anchor[j]
        self.theta, self.R, self.K, self.P0 = (
            getattr(tubes, name)[j] for name in ("margin", "radius", "growth", "along")
        )
        self.h, self.psi = tubes.step[j], tubes.share[j]
        n, T = data.n_inputs, data.n_tokens
        scores = data.scores(v)
        places = [(i, t) for i in range(n) for t in range(T) if t != selected[i]]
        self.of, t = np.array(places).T
        self.a = data.K[self.of, selected[self.of]] - data.K[self.of, t]
        self.delta = scores[self.of, selected[self.of]] - scores[self.of, t]
        self.support = tubes.support[j][self.of, t]
        self.along = self.a @ self.direction
        self.beside = self.a - np.outer(self.along, self.direction)
        self.wide = np.linalg.norm(self.beside, axis=-1)
        self.sigma = self.along - self.theta
        self.data, self.v, self.scores, self.selected, self.n = data, v, scores, selected, n
        chosen = scores[np.arange(n), selected]
        self.slope = 1.0 / (1.0 + np.exp(chosen)) / n
        self.lam = np.linalg.lstsq(self.a[self.support].T, self.direction, rcond=None)[0]
        rho = np.log(self.slope[self.of[self.support]] * self.delta[self.support] / self.lam)
        self.level = self.theta * self.lam @ rho
        self.kappa = self.K / (2.0 * self.R)
        self.bounds = self.at(0.0)

    def at(self, x):
        """ε, log m₊, -log m₋, o, τ, θ', e and E of the proof at P = P_0 + x."""
        P, R = self.P0 + x, self.R + self.kappa * x
        near = np.exp(self.wide * R - self.along * P - self.a @ self.anchor)
        eps = np.bincount(self.of, near, self.n)[self.of]
        high = np.array([max(0.0, self.delta[self.of == i].max()) for i in range(self.n)])[self.of]
        low = np.array([max(0.0, -self.delta[self.of == i].min()) for i in range(self.n)])[self.of]
        S = self.support
        more = (eps * (high + low / self.delta))[S].max()
        less = (eps * low - np.log1p(-eps) - np.log1p(-eps * high / self.delta))[S].max()
        forward = (self.delta > 0.0) & (eps * high <= self.delta)
        mass = (
            self.theta * self.slope[self.of] * np.exp(eps * high - self.level - self.sigma * P - self.a @ self.anchor)
        )
        o = np.where(forward & ~S, mass * (self.delta + eps * low), 0.0)
        bound = np.abs(self.delta) + eps * np.maximum(high, low)
        tau = np.where(forward, 0.0, mass * bound * np.exp(self.wide * R + less))
        progress = self.theta - tau @ self.along
        e = 0.5 * self.wide[S].max() * np.expm1(more + less) + (o @ self.wide) * np.exp(less) + tau @ self.wide
        E = more + less + np.log1p(o.sum()) + (tau @ self.wide) * R
        return {"more": more, "less": less, "forward": forward, "progress": progress, "e": e, "E": E}

    def pulls(self, p):
        """β of every row at p."""
        logits = self.data.K @ p
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mean = np.sum(shares * self.scores, axis=-1)
        slope = 1.0 / (1.0 + np.exp(mean)) / self.n
        lead = self.scores[np.arange(self.n), self.selected]
        share = shares[self.of, np.tile(np.arange(self.data.n_tokens), self.n)[self.others()]]
        return slope[self.of] * share * (mean[self.of] - (lead[self.of] - self.delta))

    def others(self):
        return (np.arange(self.data.n_tokens) != self.selected[:, None]).ravel()


def tube_points(tube, rng, count):
    """Points of the tube, most of them on its wall."""
    x = rng.exponential(2.0 / tube.theta, count) * (rng.random(count) < 0.7)
    away = rng.standard_normal((count, len(tube.direction)))
    away -= np.outer(away @ tube.direction, tube.direction)
    wall = (tube.R + tube.kappa * x) * np.where(rng.random(count) < 0.6, 1.0, rng.random(count))
    away *= (wall / np.maximum(np.linalg.norm(away, axis=-1), 1e-300))[:, None]
    return x, (tube.P0 + x)[:, None] * tube.direction + tube.anchor + away


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [0.0, 0.3, 2.0])
def test_every_proof_inequality_holds_in_the_tube(shape, size):
    rng = np.random.default_rng(hash((shape, size)) % 1000)
    data, v, points = points_around_directions(shape, 150, rng)
    rule = ml.NormalizedGD(size) if size else None
    tubes = find_tubes(data, v, points, rule, Logistic())
    proved = np.flatnonzero(tubes.missing == Missing.NOTHING)
    assert len(proved) > 10
    for j in proved[:5]:
        tube = Reference(data[j], v[j], tubes, j)
        for x, p in zip(*tube_points(tube, rng, 40), strict=True):
            at, beta = tube.at(x), tube.pulls(p)
            gradient = beta @ tube.a
            exact = -ml.AttentionRisk(data[j], v[j]).gradient(p).value()
            scale = np.abs(beta) @ np.linalg.norm(tube.a, axis=-1)
            np.testing.assert_allclose(gradient, exact, rtol=0.0, atol=1e-9 * scale)  # Eq. (2)
            P = p @ tube.direction
            offset = p - P * tube.direction - tube.anchor
            z, forward = tube.a @ offset, at["forward"]
            assert (beta[forward] >= -1e-12 * scale).all()
            B = beta[forward].sum()
            assert np.exp(tube.level - tube.theta * P - at["less"]) / tube.theta <= B * (1.0 + 1e-9)  # Eq. (6)
            G = gradient @ tube.direction
            assert at["progress"] * B <= G * (1.0 + 1e-9)  # Eq. (8)
            w = np.maximum(beta[forward], 0.0) / B
            with np.errstate(divide="ignore", invalid="ignore"):
                b = beta[forward] * np.exp(z[forward])
                prior = b / b.sum()
                divergence = float(np.sum(np.where(w > 0.0, w * np.log(w / prior), 0.0)))
            assert gradient @ offset <= B * (at["E"] - divergence + 1e-9)  # Eq. (10)
            y = np.linalg.norm(gradient - G * tube.direction) / B
            lower = tube.delta > 0.0
            spread = np.linalg.norm(tube.beside[lower][:, None] - tube.beside[lower][None], axis=-1).max()
            by_spread = spread**2 / (4.0 * (1.0 - tube.psi))
            A2 = max(by_spread, at["progress"] / size) if size else by_spread
            assert divergence >= (y**2 - at["e"] ** 2 / tube.psi) / (2.0 * A2) - 1e-9  # Eq. (11)
            h = size * rng.random()
            after = p + h * gradient / np.linalg.norm(gradient)
            P_after = after @ tube.direction
            change = np.sum((after - P_after * tube.direction - tube.anchor) ** 2) - np.sum(offset**2)
            grown = size**2 * A2 / 4.0 if size * by_spread > at["progress"] else 0.0
            sideways = at["e"] ** 2 / (A2 * tube.psi) if size else 0.0
            most = (2.0 * at["E"] + sideways + grown) / at["progress"] * (P_after - P)
            assert change <= most + 1e-9 * (1.0 + np.sum(offset**2))  # Eqs (12) and (13)


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()])
@pytest.mark.parametrize(
    "rule", [ml.NormalizedGD(0.2), ml.NormalizedGD(1.0), ml.NormalizedGD(4.0), ml.GradientDescent(0.5)]
)
def test_runs_stay_in_their_tube_and_select_its_tokens(rule, loss):
    rng = np.random.default_rng(int(10 * rule.size))
    checked, with_higher_scores = 0, 0
    for shape in ((1, 4, 2), (2, 4, 3), (3, 5, 8)):
        data, v, points = points_around_directions(shape, 200, rng)
        tubes = find_tubes(data, v, points, rule, loss)
        proved = np.flatnonzero(tubes.missing == Missing.NOTHING)
        data, v, points, chosen = data[proved], v[proved], points[proved], tubes.selected[proved]
        lead = np.take_along_axis(data.scores(v), chosen[..., None], axis=-1)
        checked, with_higher_scores = (
            checked + len(proved),
            with_higher_scores + int((data.scores(v) > lead).any(axis=(1, 2)).sum()),
        )
        for n_steps in (1, 20, 400, 1600):
            points = ml.descend(data, v, loss=loss, start=points, n_steps=n_steps, optimizer=rule).final
            along = np.sum(points * tubes.direction[proved], axis=-1)
            beside = points - along[:, None] * tubes.direction[proved] - tubes.anchor[proved]
            room = tubes.radius[proved] ** 2 + tubes.growth[proved] * (along - tubes.along[proved])
            assert (along >= tubes.along[proved]).all()
            assert (np.sum(beside**2, axis=-1) <= room * (1.0 + 1e-9)).all()
            assert np.array_equal(np.argmax(np.einsum("bitd,bd->bit", data.K, points), axis=-1), chosen)
    assert checked > 60
    assert with_higher_scores > 5


class SignSteps(ml.NormalizedGD):
    def update(self, gradient, state):
        return -self.size * np.sign(gradient.value()), state


def certified(rule=None, shape=(3, 5, 6), seed=0):
    data, v = ml.data.sphere_tokens(1, *shape, seed)
    found = ml.predict_limit(data[0], v[0], optimizer=rule)
    return found.certificate


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(1.0), ml.GradientDescent(0.2)])
def test_certificates_verify_round_trip_and_fail_if_wrong(rule, tmp_path):
    right = certified(rule)
    verdict = right.verify()
    assert verdict.applies
    assert min(check.numbers["room"] for check in verdict.conditions) >= 0.0
    right.save(tmp_path / "proof.npz")
    again = Certificate.load(tmp_path / "proof.npz")
    assert again.verify().applies
    assert np.array_equal(again.point, right.point)
    assert again.optimizer == rule
    others = (right.selected + 1) % right.data.n_tokens
    planted = {
        "point too near": replace(right, point=0.2 * right.point),
        "point elsewhere": replace(right, point=-right.point),
        "radius too small": replace(right, radius=0.5 * right.deviation),
        "radius too large": replace(right, radius=50.0 * right.radius),
        "other tokens": replace(right, selected=others),
        "part of the support": replace(right, support=right.support[1:]),
        "scores the other way": replace(right, head=-right.head),
        "tolerance too large": replace(right, tolerance=right.norm),
        "tolerance below zero": replace(right, tolerance=-right.deviation),
        "radius below zero": replace(right, radius=-200.0, point=-right.point),
        "radius without end": replace(right, radius=-np.inf),
        "share below zero": replace(right, share=-1e9, radius=0.5),
        "share above one": replace(right, share=5.0),
        "other steps": replace(right, optimizer=ml.Adam(0.01)),
        "momentum": replace(right, optimizer=ml.NormalizedGD(0.01, momentum=0.99)),
        "steps of its own": replace(right, optimizer=SignSteps(0.01)),
        "support twice": replace(right, support=np.repeat(right.support, 2, axis=0)),
    }
    if rule is not None:
        planted["steps too long"] = replace(right, optimizer=replace(rule, size=1e6 * rule.size))
    assert [name for name, wrong in planted.items() if wrong.verify().applies] == []


def hard_problem(kind, rng):
    """A problem whose margin is nearly dependent, whose scores nearly tie, or whose keys have one coordinate."""
    n, d = int(rng.integers(2, 4)), 1 if kind == "one coordinate" else int(rng.integers(3, 6))
    X, v = rng.normal(size=(n, 3, 2)), np.array([1.0, 0.0])
    K = 10.0 ** rng.uniform(-1, 1) * rng.normal(size=(n, 3, d))
    X[:, 0] = 1.0 + rng.random(2)
    X[:, 1:, 0] = rng.uniform(-1.0, 0.5, (n, 2))
    if kind == "nearly dependent":
        tilt = 10.0 ** rng.uniform(-6, -2)
        X[:, 1] = X[0, 1] + tilt * rng.normal(size=(n, 2))
        K[:, 2] = K[:, 0] - 4.0 * (K[0, 0] - K[0, 1])
        K[:, 1] = K[:, 0] - (K[0, 0] - K[0, 1]) + tilt * rng.normal(size=(n, d))
    if kind == "near tie":
        X[0, 1, 0] = X[0, 0, 0] * (1.0 - 10.0 ** rng.uniform(-15.5, -8))
    return ml.TokenDataset(X, np.ones(n), K=K), v


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("kind", ["nearly dependent", "near tie", "one coordinate"])
def test_tubes_that_the_search_finds_on_hard_problems_verify(kind):
    rng, verified = np.random.default_rng(len(kind)), 0
    for _ in range(150):
        data, v = hard_problem(kind, rng)
        solved = ml.att_svm(data, data.optimal(v))
        if solved.status is not ml.Status.OPTIMAL:
            continue
        point = 10.0 ** rng.uniform(0.7, 2.5) * solved.x + 0.1 * rng.normal(size=data.d_key) * solved.margin
        rule = (None, ml.NormalizedGD(1.0), ml.GradientDescent(10.0))[rng.integers(3)]
        tubes = find_tubes(data.as_batch(), v[None], point[None], rule, Logistic())
        if tubes.missing[0] == Missing.NOTHING:
            verified += 1
            assert certify(data, v, point, optimizer=rule).verify().applies
        if verified == 12:
            break
    assert verified == 12


def test_nothing_is_proved_within_rounding():
    gap = 3e-14
    scores = np.array([[0.7, 0.2, -0.1], [0.4 + gap, 0.4, 0.4]])
    K = np.array(
        [[[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.5, 0.0]], [[0.0, 1.5, 0.0], [0.0, 0.0, 0.0], [0.5, -1.0, 1.0]]]
    )
    point = [40.0, 40.0, 10.0]

    def missing(values, rule):
        data = ml.TokenDataset(values[..., None], [1, 1], K=K)
        return Missing(find_tubes(data.as_batch(), np.ones((1, 1)), [point], rule, Logistic()).missing[0])

    for rule in (None, ml.NormalizedGD(0.5)):
        assert missing(scores, rule) is Missing.ROUNDING_DECIDES  # of an input that a double cannot see to vary
        tied = np.where(scores > 0.4, scores, np.minimum(scores, 0.4))
        tied[1] = 0.4
        assert missing(tied, rule) is Missing.NOTHING  # exact ties are left out, as verify() does
        close = scores.copy()
        close[1, 2] = -0.3  # of two tokens of an input that varies, one of which is on the margin
        assert missing(close, rule) is Missing.ROUNDING_DECIDES


def test_forecasts_of_large_plain_steps_are_finite_and_in_order():
    data, v = ml.data.sphere_tokens(1, 2, 4, 5, 31)
    solved = ml.att_svm(data[0], data[0].optimal(v[0]))
    for size in (1e2, 1e5, 1e8):
        rule = ml.GradientDescent(size)
        ahead = certify(data[0], v[0], 120.0 * solved.x, optimizer=rule).forecast([0, 1, 1e3, 1e9, 1e15])
        for values in (ahead.along, ahead.norm, ahead.angle):
            assert np.isfinite(np.array(values)).all()
            assert (values.low <= values.high).all()


@pytest.mark.filterwarnings("error")
def test_forecasts_of_far_points_give_no_warning():
    data, v = ml.data.sphere_tokens(8, 3, 4, 5, 333)
    found = ml.predict(ml.AttentionRisk(data, v), optimizer=ml.GradientDescent(1e4))
    proofs = [answer.certificate for answer in found if isinstance(answer.certificate, Certificate)]
    far = [proof for proof in proofs if proof.margin * proof.norm > 745.0]  # e to minus this is zero
    assert far
    for proof in far:
        law = proof.forecast(10_000)
        assert np.isfinite(law.norm).all()
        assert np.isfinite(law.angle).all()


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()])
def test_steps_repeated_in_intervals_prove_the_run(loss):
    rng = np.random.default_rng(8)
    data, v = ml.TokenDataset([rng.normal(size=(4, 3)), rng.normal(size=(2, 3))], [1, -1]), rng.normal(size=3)
    start = rng.normal(size=3)
    for rule in (ml.NormalizedGD(1.0), ml.GradientDescent(0.5)):
        steps = 32 if isinstance(rule, ml.NormalizedGD) else 50
        run = ml.descend(data, v, loss=loss, optimizer=rule, n_steps=steps, start=start)
        far = ml.descend(data, v, loss=loss, optimizer=ml.NormalizedGD(1.0), n_steps=200, start=start).final
        proof = replace(
            certify(data, v, far, optimizer=ml.NormalizedGD(1.0), loss=loss), optimizer=rule, point=run.final
        )
        way = proof.verify(start, steps).conditions[-1]
        assert way.code == "tube.exact_steps"
        assert way.numbers["n_steps"] == steps
        assert way.holds
        assert way.numbers["room"] > 0.999  # the exact iterate is far nearer than it has to be
        assert not proof.verify(start, steps - 1).conditions[-1].holds
        assert not proof.verify(start + 0.1, steps).conditions[-1].holds
    with refused("n_steps"):
        replace(proof, optimizer=None).verify(start, 3)


def test_a_point_without_a_proof_is_refused_with_the_missing_condition():
    data, v = ml.data.sphere_tokens(1, 2, 4, 3, 1)
    for point, rule, loss in (
        ([0.1, 0.0, 0.0], None, None),
        ([0.0, 0.0, 0.0], None, None),
        ([30.0, 1.0, 2.0], ml.Adam(0.1), None),
        ([30.0, 1.0, 2.0], None, ml.losses.Loss()),
    ):
        with refused("optimizer" if rule else "loss" if loss else "point"):
            certify(data[0], v[0], point, optimizer=rule, loss=loss)

    class Others(ml.TokenDataset):
        pass

    with refused("data"):
        certify(Others(data[0].X, data[0].y), v[0], [30.0, 1.0, 2.0])
    right = certified()
    assert certify(right.data, right.head, right.point).radius == right.radius


@pytest.mark.statement("X Thm 2")
def test_the_flow_into_a_minimum_is_proved_and_wrong_proofs_fail(tmp_path):
    found = 0
    for seed, j in itertools.product((5, 8), range(4)):  # the batches with a minimum, one each, of the first twelve
        data, v = (batch[j] for batch in ml.data.sphere_tokens(4, 2, 4, 3, seed))
        prediction = ml.predict_limit(data, v)
        proof = prediction.certificate
        assert (prediction.direction is None) == prediction.outcome.finite
        if not isinstance(proof, MinimumCertificate):
            continue
        found += 1
        assert proof.verify().applies
        assert prediction.answer.ends_at.code == "outcome.ends_at.finite"
        proof.save(tmp_path / "minimum.npz")
        assert MinimumCertificate.load(tmp_path / "minimum.npz").verify().applies
        near = proof.point + 0.1 * proof.radius / np.sqrt(3.0)
        assert np.linalg.norm(ml.flow(data, v, start=near).final - proof.point) <= proof.radius
        for wrong in (
            replace(proof, point=1.1 * proof.point),
            replace(proof, radius=1e4 * proof.radius),
            replace(proof, curvature=10.0 * proof.curvature),
            replace(proof, curvature=-10.0),
            replace(proof, radius=-proof.radius),
            replace(proof, tolerance=-1.0),
            replace(proof, head=-proof.head),
        ):
            assert not wrong.verify().applies
        circling = ml.predict_limit(data, v, optimizer=ml.NormalizedGD(1.0))
        assert circling.outcome.finite
        assert not circling.outcome.proved
        assert circling.direction is None
    assert found == 2


@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(1.0)])
def test_certain_directions_are_where_long_runs_end(rule):
    data, v = ml.data.sphere_tokens(8, 3, 5, 10, 5)
    found = ml.predict(ml.AttentionRisk(data, v), optimizer=rule)
    run = ml.descend(data, v, n_steps=30_000, optimizer=rule or ml.NormalizedGD(0.05))
    for prediction, final, chosen in zip(found, run.final, run.selected, strict=True):
        outcome = prediction.outcome
        assert outcome.proved
        assert prediction.direction is not None
        assert prediction.why.startswith("Certain")
        assert np.array_equal(outcome.selected, chosen)
        assert float(np.linalg.norm(final / np.linalg.norm(final) - prediction.direction)) < 0.02
        assert outcome.ends_at.code == "outcome.ends_at.direction"
        assert outcome.because[0].numbers["rival"].code == "outcome.rival"
        assert str(prediction).startswith(f"{outcome}\n{outcome.details[0]}")
        assert outcome.to_frame()["selected"].tolist() == chosen.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_of_two_support_tokens_the_first_is_named(seed):
    """Both lead by the same number, which rounding makes smaller for one of them, in bases and orders drawn at random."""
    keys = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 0.5]])
    rng = np.random.default_rng(seed)
    order, (basis, _) = rng.permutation(4), np.linalg.qr(rng.normal(size=(3, 3)))
    data, v = scored_tokens([(keys @ basis)[order]], [np.array([2.0, 0.5, 0.75, 0.25])[order]])
    (rival,) = ml.predict_limit(data, v, optimizer=ml.NormalizedGD(0.1)).outcome.rivals
    tied = np.flatnonzero(order)  # all but the selected token lead by the same number
    assert order[rival.selected] == 0
    assert rival.token == tied[0]


@pytest.mark.statement("X Thm 1")
@pytest.mark.parametrize("rule", [None, ml.NormalizedGD(2.0), ml.NormalizedGD(0.05), ml.GradientDescent(0.5)])
def test_forecast_norms_and_angles_lie_in_their_brackets(rule):
    for seed in range(4):
        proof = certified(rule, seed=seed)
        after = [0, 3, 40, 700]
        ahead = proof.forecast(after)
        point, errors = proof.point, []
        for k, more in enumerate(np.diff(after, prepend=0)):
            if rule is None and more:
                point = ml.flow(proof.data, proof.head, until=ml.UntilLength(float(more)), start=point).final
            elif more:
                run = ml.descend(proof.data, proof.head, optimizer=rule, n_steps=int(more), start=point)
                point = run.final
            along = float(point @ proof.direction)
            beside = float(np.linalg.norm(point - along * proof.direction))
            seen = {"along": along, "norm": np.linalg.norm(point), "angle": np.arctan2(beside, along)}
            for name, value in seen.items():
                predicted, low, high = (values[k] for values in getattr(ahead, name))
                assert low <= value <= high
                assert low <= predicted <= high
                errors.append(abs(predicted / value - 1.0))
        assert max(errors) < 0.3
        assert np.median(errors) < 0.02
    assert ahead.to_frame()["norm_high"].tolist() == ahead.norm.high.tolist()
    with refused("steps"):
        proof.forecast(-1)


def test_w_is_followed_like_p():
    data, v, queries = ml.data.sphere_queries(3, 3, 5, 4, 2)
    for j in range(3):
        for query in (queries[j], queries[j][0]):
            risk = ml.risk.MatrixRisk(ml.AttentionRisk(data[j], v[j]), query)
            found = ml.predict(risk, optimizer=ml.NormalizedGD(1.0))
            run = ml.descend(risk, n_steps=1_500, optimizer=ml.NormalizedGD(1.0))
            assert found.outcome.proved
            assert ml.correlation(run.final.ravel(), found.direction.ravel()) > 0.995


def test_theorems_answer_alike_without_a_run():
    sequences = ml.SequenceDataset([[0, 2, 5], [1, 4, 5], [0, 3, 4, 5]], [0, 1, 0], np.eye(6))
    certain = ml.predict_limit(sequences)
    assert (certain.answer.ends_at.code, certain.answer.proof.code) == (
        "outcome.theorem.limit",
        "outcome.verdict.proved",
    )
    assert certain.answer.details[0].numbers["citation"] == "C Thm 3"
    assert str(certain).startswith(certain.answer.in_full)
    of_path = ml.predict_limit(sequences, optimizer=ml.NormalizedGD(1.0)).answer
    assert (of_path.ends_at.code, of_path.proof.code) == ("outcome.theorem.path", "outcome.verdict.in_part")
    assert of_path.details[0].numbers["citation"] == "C Thm 1"
    data, v = ml.data.sphere_tokens(1, 3, 5, 6, 0)
    # Head and attention together.
    assert ml.predict_limit(data[0]).answer.proof.code == "outcome.verdict.undecided"
    at_start = ml.predict_limit(data[0], v[0], prove=False)
    assert at_start.answer.ends_at.code == "outcome.theorem.path"
    assert at_start.outcome is None


def test_undecided_questions_have_a_reason():
    rng = np.random.default_rng(0)
    X, v = rng.standard_normal((2, 4, 3)), rng.standard_normal(3)
    X[0, 1] = X[0, 0]  # twins: whatever leads, the other one ties with it or scores the same
    ties = ml.predict_limit(ml.TokenDataset(X, [1, 1]), v)
    assert not ties.outcome.proved
    assert ties.outcome.proof.numbers["reason"] == ties.outcome.missing
    one_key = ml.TokenDataset(np.ones((1, 3, 2)), [1])
    assert ml.predict_limit(one_key, [1.0, 2.0]).outcome.certificate is None
    assert ml.predict_limit(*_single(), prove=False).outcome is None
    computed = ml.predict_limit(*_single(), optimizer=ml.Adam(0.1)).outcome
    assert computed.proof.code == "outcome.verdict.computed"
    assert computed.missing.code == "outcome.missing.uncovered"
    assert not computed.proved


def _single():
    data, v = ml.data.sphere_tokens(1, 2, 4, 3, 0)
    return data[0], v[0]
