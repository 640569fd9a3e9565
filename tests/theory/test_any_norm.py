"""X Theorem 4: every inequality of docs/proofs/any_norm.md on random problems, long runs after certificates, and faults in every field."""

import runpy
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path

import mpmath
import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import InputError
from marginlens.losses import CorrelationLoss, Exponential, Logistic
from marginlens.risk import MulticlassRisk, MultiHeadRisk
from marginlens.svm.solvers.least_distance import shortest_above
from marginlens.theory import SteepestCertificate
from marginlens.theory.any_norm import Lacking, certificate_at, place_at, plan_for, rows_of, steepest_steps
from marginlens.theory.attraction import STEEPNESS
from marginlens.theory.optimality import directional_margin
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_coq import coq_file
from marginlens.theory.steepest_runs import Runs, outcomes_of
from marginlens.theory.vertex_steps import vertex_steps

VECTOR_RULES = {
    "sign": ml.SignDescent,
    "coordinate": ml.CoordinateDescent,
    "l3": lambda size: ml.SteepestDescent(ml.Lp(3.0), size),
    "l1.4": lambda size: ml.SteepestDescent(ml.Lp(1.4), size),
    "euclidean": lambda size: ml.SteepestDescent(ml.L2(), size),
}
MATRIX_RULES = {
    "muon": lambda size: ml.Muon(size, momentum=0.0, nesterov=False),
    "nuclear": lambda size: ml.SteepestDescent(ml.Nuclear(), size),
    "max-row": lambda size: ml.SteepestDescent(ml.MaxRow(), size),
    "frobenius": lambda size: ml.SteepestDescent(ml.Frobenius(), size),
}
LONG_RULES = {"sign, long": ml.SignDescent, "coordinate, long": ml.CoordinateDescent}  # proved by Eq. (14) alone
LONG = 0.8  # hD₂²/(8γ) of their steps
RULES = VECTOR_RULES | MATRIX_RULES | LONG_RULES
REMEMBERING = {
    "sign": lambda size: ml.SignDescent(size, momentum=0.8),
    "sign, nesterov": lambda size: ml.SignDescent(size, momentum=0.8, nesterov=True),
    "l3": lambda size: ml.SteepestDescent(ml.Lp(3.0), size, momentum=0.9),
    "muon": lambda size: ml.Muon(size, momentum=0.6),
    "max-row": lambda size: ml.SteepestDescent(ml.MaxRow(), size, momentum=0.9),
}
MARKS = 2 ** np.arange(4, 16)


def drawn(seed, n, T, d):
    """A problem of unit tokens with scores from a random head."""
    data, heads = ml.data.sphere_tokens(1, n_inputs=n, n_tokens=T, d_model=d, rng=seed)
    return data[0], heads[0]


def with_queries(seed, n, T, shape):
    """The risk of W on inputs with different queries, and the same problem on the products of queries and tokens."""
    rng = np.random.default_rng([5, seed])
    X = rng.normal(size=(n, T, shape[1]))
    data, v, U = (
        ml.TokenDataset(X, rng.choice([-1.0, 1.0], n)),
        rng.normal(size=shape[1]),
        rng.normal(size=(n, shape[0])),
    )
    wide = np.einsum("nq,ntd->ntqd", U, X).reshape(n, T, -1)
    return ml.AttentionRisk(data, v).as_matrix(U), ScoredTokens(data.with_keys(wide), v)


def problem_of(rule, seed, shape=(3, 4, 5)):
    """A risk, its problem of vectors, and the shape of its weights."""
    if rule in MATRIX_RULES:
        risk, problem = with_queries(seed, shape[0], shape[1], (3, 4))
        return risk, problem, (3, 4)
    data, v = drawn(seed, *shape)
    return ml.AttentionRisk(data, v), ScoredTokens(data, v), (data.d_key,)


def size_for(make, problem, shape, share=0.25):
    """The length of steps with hD₂²/8 = share · γ for the optimal tokens; None if they are not separable."""
    plan = plan_for(problem, problem.optimal, steepest_steps(make(1e-9)), shape)
    return share * 8.0 * plan.gamma / plan.widest**2 if plan.widest > 0.0 else None


def proof_of(rule, seed, shape=(3, 4, 5), loss=None, size=None):
    """The first proof along a run from zero, with its risk, or what is lacking at the end."""
    risk, problem, form = problem_of(rule, seed, shape)
    if loss is not None:
        risk = ml.AttentionRisk(problem.data, problem.head, loss)
        problem = ScoredTokens(problem.data, problem.head, loss)
    size = size_for(RULES[rule], problem, form, LONG if rule in LONG_RULES else 0.25) if size is None else size
    if size is None:
        return risk, Lacking.INFEASIBLE
    optimizer, point, taken, lacking = RULES[rule](size), np.zeros(form), 0, Lacking.INFEASIBLE
    for mark in MARKS:
        point = ml.descend(risk, start=point, optimizer=optimizer, n_steps=int(mark) - taken).final
        taken, steps = int(mark), steepest_steps(optimizer, int(mark))
        at = directional_margin(problem.data, point.ravel())
        plan = plan_for(problem, at.selected, steps, form)
        place = place_at(plan, point.ravel(), steps, STEEPNESS[type(problem.loss)], form)
        lacking = place.lacking
        if lacking is Lacking.NOTHING:
            return risk, certificate_at(problem, point.ravel(), plan, place, steps, form)
    return risk, lacking


@cache
def proofs(rule, count=4):
    """Some proofs, from several seeds and two shapes."""
    found = []
    for seed in range(60):
        risk, proof = proof_of(rule, seed, (3, 4, 5) if seed % 2 else (2, 3, 2))
        if isinstance(proof, SteepestCertificate) and bool(len(proof.turns)) == (rule in LONG_RULES):
            found.append((risk, proof))
        if len(found) == count:
            return found
    raise AssertionError(f"too few proofs for {rule}")


@cache
def remembering(rule, count=3):
    """Some proofs for steps with momentum, each with its risk and the run that led to it, which has saved its last step."""
    found, make = [], REMEMBERING[rule]
    for seed in range(60):
        risk, problem, form = problem_of(rule, seed, (3, 4, 5) if seed % 2 else (2, 3, 2))
        size = size_for(make, problem, form, 0.01)
        if size is None:
            continue
        [outcome] = outcomes_of(problem.as_batch(), Runs([risk], np.zeros((1, *form))), make(size))
        if outcome.certificate is not None:
            taken = outcome.n_steps
            run = ml.descend(risk, optimizer=make(size), n_steps=taken, record=ml.Record([taken]))
            found.append((risk, run, outcome.certificate))
        if len(found) == count:
            return found
    raise AssertionError(f"too few proofs for {rule}")


def potential(proof):
    """The rows of a proof in doubles, and its potential as a function of the weights."""
    problem = ScoredTokens(proof.data, proof.head, proof.loss)
    rows = rows_of(problem, proof.selected)
    named = {tuple(token) for token in proof.leading.tolist()}
    leads = np.array([tuple(token) in named for token in rows.tokens.tolist()])
    a, limit = rows.a[leads], np.exp(rows.log_slope[leads]) * rows.delta[leads]
    return rows, leads, lambda p: limit * np.exp(-a @ p)


# ---- the inequalities


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("rule", RULES)
def test_every_step_after_a_proof_obeys_the_inequalities(rule):
    for risk, proof in proofs(rule):
        rows, leads, terms = potential(proof)
        norm, form, h = proof.steepest_in, proof.shape, proof.longest
        a, slack = rows.a[leads], 1e-9
        D2 = max(norm.dual((r - s).reshape(form)) for r in a for s in a) if len(a) > 1 else 0.0
        gamma = (a @ proof.witness).min()
        point, F_0 = proof.point, terms(proof.point).sum()
        for t in range(60):
            weights = terms(point)
            F, u = weights.sum(), weights @ a / weights.sum()
            gradient = risk.gradient(point.reshape(form)).value().ravel()
            step = (
                ml.descend(risk, start=point.reshape(form), optimizer=RULES[rule](h), n_steps=1).final.ravel() - point
            )
            s, e = step / h, norm.dual((-gradient / F - u).reshape(form))
            assert norm.value(s.reshape(form)) <= 1.0 + slack
            assert norm.dual(u.reshape(form)) >= gamma - slack
            fall = np.log(F) - np.log(terms(point + step).sum())
            if not len(proof.turns):
                assert fall >= h * u @ s - h**2 * D2**2 / 8.0 - slack  # Eq. (4)
            assert u @ s >= gamma - 2.0 * e - slack  # Eq. (5)
            assert fall >= proof.rate * h - slack
            assert F_0 * np.exp(-proof.rate * h * t) * (1.0 + slack) >= F
            others = rows.a[~leads]
            rest = others - proof.multipliers @ a
            lag = np.array([norm.dual(v.reshape(form)) for v in rest])
            bound = (
                rest @ proof.point
                - lag * h * t
                + proof.multipliers @ (-np.log(weights / (terms(np.zeros_like(point)))))
            )
            assert (others @ point >= bound - 1e-6).all()  # Eq. (7) before its logarithms of F
            point = point + step


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("rule", RULES)
def test_long_runs_after_a_proof_keep_its_tokens_and_its_margin(rule):
    for risk, proof in proofs(rule):
        assert proof.verify().applies, proof.verify()
        end = ml.descend(
            risk, start=proof.point.reshape(proof.shape), optimizer=RULES[rule](proof.longest), n_steps=20_000
        ).final
        at = directional_margin(proof.data, end.ravel())
        assert at.selected.tolist() == proof.selected.tolist()
        rows, _, _ = potential(proof)
        margin = (rows.a @ end.ravel()).min() / proof.steepest_in.value(end)
        travelled = proof.longest * 20_000
        room = 4.0 * (proof.steepest_in.value(proof.point.reshape(proof.shape)) + 10.0) / travelled
        assert proof.low - room <= margin <= proof.high + 1e-9


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("rule", REMEMBERING)
def test_steps_with_momentum_obey_the_inequalities_and_keep_their_tokens(rule):
    for _, run, proof in remembering(rule):
        assert proof.momentum > 0.0
        assert proof.remembered.sum() > 0.0
        assert proof.verify().applies, proof.verify()
        rows, leads, terms = potential(proof)
        a, h, norm, begin = rows.a[leads], proof.longest, proof.steepest_in, int(run.saved.steps[-1])
        assert np.array_equal(run.final.ravel(), proof.point)
        later = run.resume(80, record=ml.Record(range(begin + 1, begin + 81))).saved["x"]
        points = np.concatenate([proof.point[None], later.reshape(80, -1)])
        logs = np.log([terms(x).sum() for x in points])
        assert (logs[0] - logs >= proof.rate * h * np.arange(len(points)) - 1e-9).all()
        assert (np.diff(logs) <= -proof.rate * h + 1e-9).all()
        end = run.resume(20_000).final
        assert directional_margin(proof.data, end.ravel()).selected.tolist() == proof.selected.tolist()
        margin = (rows.a @ end.ravel()).min() / norm.value(end)
        room = 4.0 * (norm.value(run.final) + 10.0) / (h * 20_000)
        assert proof.low - room <= margin <= proof.high + 1e-9
        # The memory is what the stated weights say, up to the errors of gradients.
        mean = proof.remembered @ a / proof.remembered.sum()
        error = norm.dual((proof.memory / proof.remembered.sum() - mean).reshape(proof.shape))
        assert error <= 0.5 * proof.high


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()])
def test_steps_that_tend_to_zero_reach_the_whole_margin(loss):
    data, v = drawn(3, 2, 3, 4)
    problem, rule = ScoredTokens(data, v, loss), ml.SignDescent(ml.optimizers.PowerDecay(0.5, 0.5))
    point = ml.descend(ml.AttentionRisk(data, v, loss), optimizer=rule, n_steps=4_000).final
    steps = steepest_steps(rule, 4_000)
    assert steps.limit == 0.0
    assert steps.longest < 0.01
    plan = plan_for(problem, directional_margin(data, point).selected, steps, (4,))
    place = place_at(plan, point, steps, STEEPNESS[type(loss)], (4,))
    assert place.lacking is Lacking.NOTHING
    proof = certificate_at(problem, point, plan, place, steps, (4,))
    assert proof.verify().applies
    assert proof.high - proof.low < 1e-6 * proof.high


def vertices_of(norm, d):
    signs = list(product((1.0, -1.0), repeat=d))
    return np.array(signs) if isinstance(norm, ml.LInf) else np.concatenate([np.eye(d), -np.eye(d)])


def simplex(rng, n):
    return rng.dirichlet(np.full(n, rng.choice([0.1, 1.0, 10.0])))


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("q", [1.2, 1.6, 2.0, 3.0, 7.0])
def test_points_with_nearly_the_largest_margin_are_as_close_as_the_proof_says(q):
    rng, seen = np.random.default_rng([6, int(10 * q)]), 0
    for _ in range(30):
        a = rng.normal(size=(4, 3)) + 0.8
        norm = ml.Lp(q) if q != 2.0 else ml.L2()
        best = ml.least_distance(a, np.ones(4), norm=norm)
        if best.status is not ml.Status.OPTIMAL:
            continue
        gamma, star = 1.0 / norm.value(best.x), best.x / norm.value(best.x)
        for other in star + 0.3 * rng.normal(size=(200, 3)) * rng.uniform(size=(200, 1)) ** 2:
            p = other / max(1.0, norm.value(other))
            theta = gamma - (a @ p).min()
            share = theta / gamma
            if not 0.0 <= share < 1.0:
                continue
            seen += 1
            bound = (
                2.0 * (1.0 - (1.0 - share / 2.0) ** q) ** (1.0 / q)
                if q >= 2.0
                else 2.0 * np.sqrt((1.0 - (1.0 - share / 2.0) ** 2) / (q - 1.0))
            )
            assert norm.value(p - star) <= bound + 1e-7  # Eq. (13)
    assert seen > 1000


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("norm", [ml.L1(), ml.LInf()])
def test_multipliers_bound_steps_to_vertices_better_than_the_range(norm):
    rng, sharper, steps = np.random.default_rng(7), 0, 0
    for _ in range(40):
        a, h, nu = rng.normal(size=(5, 3)) + 0.6, float(rng.uniform(0.05, 1.0)), float(rng.uniform(0.0, 0.05))
        best = ml.least_distance(a, np.ones(5), norm=norm)
        if best.status is not ml.Status.OPTIMAL:
            continue
        gamma = 1.0 / norm.value(best.x)
        corners, turns = vertices_of(norm, 3), vertex_steps(a, norm, gamma, h, np.inf)
        rate = -np.log(np.max(turns.values + 2.0 * nu * turns.slopes)) / h
        widest = max(norm.dual(r - s) for r in a for s in a)
        sharper += rate > gamma - h * widest**2 / 8.0 - 2.0 * nu
        for _ in range(200):
            w, e = simplex(rng, 5), rng.normal(size=3)
            u = w @ a
            m = u + nu * rng.uniform() * e / norm.dual(e)
            j = int(np.argmax(corners @ m))
            left = w @ np.exp(-h * a @ corners[j])
            (kappa, *z), slope = turns.duals[j], turns.slopes[j]
            assert slope == pytest.approx(kappa + norm.value(np.array(z)), rel=1e-12, abs=0.0)
            assert left <= turns.values[j] + 2.0 * nu * slope + 1e-9  # Eq. (14)
            assert np.log(left) <= -h * rate + 1e-9
            assert np.log(w @ np.exp(-0.5 * h * a @ corners[j])) <= 0.5 * np.log(left) + 1e-12
            steps += 1
    assert steps > 3000
    assert sharper > 10


@pytest.mark.statement("X Thm 4")
def test_memory_loses_no_more_than_the_proof_says():
    rng = np.random.default_rng(8)
    for _ in range(300):
        n, d, h, beta = 4, 3, float(rng.uniform(0.01, 0.2)), float(rng.uniform(0.1, 0.9))
        a, norm = rng.normal(size=(n, d)), (ml.LInf(), ml.L1(), ml.L2())[rng.integers(3)]
        D, D2 = max(norm.dual(r) for r in a), max(norm.dual(r - s) for r in a for s in a)
        b, limit = beta * np.exp(h * D), np.exp(rng.normal(size=n))
        p, us, Fs = rng.normal(size=d), [], []
        for _ in range(25):
            terms = limit * np.exp(-a @ p)
            us.append(terms @ a / terms.sum())
            Fs.append(terms.sum())
            step = norm.steepest(rng.normal(size=d))
            p = p + h * step
        u, F = np.array(us[::-1]), np.array(Fs[::-1])
        s = norm.steepest(rng.normal(size=d))
        k = np.arange(len(u))
        assert ((u - u[0]) @ s <= D2 * np.tanh(k * h * D2 / 4.0) + 1e-12).all()  # Eq. (16)
        assert (F[1:] <= F[:-1] * np.exp(h * D) * (1.0 + 1e-12)).all()
        if b < 1.0:
            q = beta**k * F / (beta**k * F).sum()
            far = np.arange(5_000)
            J = (1.0 - b) * np.sum(b**far * D2 * np.tanh(far * h * D2 / 4.0))
            assert (q @ u - u[0]) @ s <= J + 1e-12  # Eq. (17)
            assert b / (1.0 - b) * h * D2**2 / 4.0 + 1e-12 >= J


@pytest.mark.statement("X Thm 4")
def test_what_is_remembered_of_earlier_steps_costs_no_more_than_the_proof_says():
    rng = np.random.default_rng(18)
    for _ in range(300):
        n, d, h, beta = 4, 3, float(rng.uniform(0.01, 0.1)), float(rng.uniform(0.1, 0.8))
        a, norm = rng.normal(size=(n, d)), (ml.LInf(), ml.L1(), ml.L2())[rng.integers(3)]
        D, D2 = max(norm.dual(r) for r in a), max(norm.dual(r - s) for r in a for s in a)
        b, limit, p = beta * np.exp(h * D), np.exp(rng.normal(size=n)), rng.normal(size=d)
        if b >= 1.0:
            continue
        J, nesterov = b / (1.0 - b) * h * D2**2 / 4.0, bool(rng.integers(2))
        terms = limit * np.exp(-a @ p)
        pi, size = simplex(rng, n), rng.uniform() * np.exp(h * D) / (1.0 - b) * terms.sum()
        sigma, d_0 = size / terms.sum(), norm.dual(pi @ a - terms @ a / terms.sum())
        total, weight, shares = size * pi @ a, size, []
        for _ in range(20):
            terms = limit * np.exp(-a @ p)
            total, weight = beta * total + terms @ a, beta * weight + terms.sum()
            ahead = terms @ a + beta * total if nesterov else total
            mean = ahead / (terms.sum() + beta * weight if nesterov else weight)
            shares.append((mean - terms @ a / terms.sum()) @ (s := norm.steepest(rng.normal(size=d))))
            p = p + h * s
        assert max(shares) <= J + beta * sigma / (1.0 + beta * sigma) * d_0 + 1e-12  # Eqs (17) and (18)


def test_two_distributions_whose_log_ratio_is_bounded_are_close():
    rng = np.random.default_rng(9)
    for _ in range(2_000):
        w, R = simplex(rng, 5), float(rng.uniform(0.0, 6.0))
        tilted = w * np.exp(R * rng.choice([0.0, 1.0, rng.uniform()], 5))
        assert 0.5 * np.abs(w - tilted / tilted.sum()).sum() <= np.tanh(R / 4.0) + 1e-12


# ---- what is covered, and what is lacking


def test_only_steps_that_the_theorem_covers_have_a_norm():
    decay = ml.optimizers.PowerDecay
    assert steepest_steps(ml.SignDescent(0.3)) == (ml.LInf(), 0.3, 0.3, 0.0)
    assert steepest_steps(ml.SteepestDescent(ml.Lp(3.0), decay(1.0, 1.0)), 9) == (ml.Lp(3.0), 0.1, 0.0, 0.0)
    assert steepest_steps(ml.NormalizedGD(0.5)) == (ml.L2(), 0.5, 0.5, 0.0)

    class Redefined(ml.SignDescent):
        def update(self, gradient, state):
            return -gradient.value(), state

    class OwnNorm(ml.L2):
        pass

    assert steepest_steps(ml.SignDescent(0.1, momentum=0.5)) == (ml.LInf(), 0.1, 0.1, 0.5)
    assert steepest_steps(ml.Muon(0.1)) == (ml.Spectral(), 0.1, 0.1, 0.95)
    refused = [
        ml.SignDescent(0.1, weight_decay=0.1),
        ml.SignDescent(decay(1.0, 1.1)),
        ml.SignDescent(lambda t: 0.1),
        ml.GradientDescent(0.1, momentum=0.5),
        ml.Adam(0.1),
        ml.MirrorDescent(3.0, 0.1),
        ml.GradientDescent(0.1),
        Redefined(0.1),
        ml.SteepestDescent(OwnNorm(), 0.1),
    ]
    assert [steepest_steps(optimizer) for optimizer in refused] == [None] * len(refused)


def lacking_at(data, v, point, size, make=ml.SignDescent):
    problem, steps = ScoredTokens(data, v), steepest_steps(make(size))
    plan = plan_for(problem, directional_margin(data, point).selected, steps, (data.d_key,))
    return place_at(plan, np.asarray(point, dtype=np.float64), steps, 1.0, (data.d_key,)).lacking


def test_each_condition_that_fails_has_its_name():
    X = np.array([[[1.0, 0.0], [-1.0, 0.5]]])
    data, v = ml.TokenDataset(X, [1.0]), np.array([1.0, 0.0])
    assert lacking_at(data, v, [20.0, 0.0], 0.1) is Lacking.NOTHING
    assert lacking_at(data, v, [0.1, 0.0], 0.1) is Lacking.WEIGHTS_TOO_LARGE
    assert lacking_at(data, v, [-20.0, 0.0], 0.1) is Lacking.SUPPORT_SCORES_HIGHER
    opposed = ml.TokenDataset(np.array([[[1.0, 0.0], [0.5, 0.0]], [[0.5, 0.0], [1.0, 0.0]]]), [1.0, 1.0])
    assert (
        plan_for(ScoredTokens(opposed, v), np.array([0, 0]), steepest_steps(ml.SignDescent(0.1)), (2,)).lacking
        is Lacking.INFEASIBLE
    )
    two = ml.TokenDataset(np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [-0.1, -1.0]]]), [1.0, 1.0])
    both, far = np.array([1.0, 1.0]), [20.0, 20.0]
    assert lacking_at(two, both, far, 10.0, VECTOR_RULES["l3"]) is Lacking.STEPS_TOO_LONG
    assert (
        lacking_at(two, both, far, 10.0) is Lacking.NOTHING
    )  # all gradients have the same signs, so Eq. (14) loses nothing
    assert lacking_at(two, both, far, 1.0, REMEMBERING["sign"]) is Lacking.REMEMBERS_TOO_MUCH
    assert lacking_at(two, both, far, 0.001, REMEMBERING["sign"]) is Lacking.NOTHING
    level = ml.TokenDataset(np.array([[[1.0, 0.0, 1.0], [-1.0, 0.0, 1.0 + 1e-16], [-0.9, 0.0, 1.0 + 3e-16]]]), [1.0])
    assert lacking_at(level, np.array([0.0, 0.0, 1.0]), [20.0, 0.0, 0.0], 0.1) is not Lacking.NOTHING


# ---- files and faults


@pytest.mark.parametrize("rule", ["sign", "l3", "muon"])
def test_a_proof_survives_a_file(rule, tmp_path):
    _, proof = proofs(rule)[0]
    proof.save(tmp_path / "proof.npz")
    read = SteepestCertificate.load(tmp_path / "proof.npz")
    assert read.steepest_in == proof.steepest_in
    assert read.shape == proof.shape
    assert read.verify().applies
    for field in fields(proof):
        if field.name not in ("data", "loss"):
            assert np.array_equal(getattr(read, field.name), getattr(proof, field.name))


CHECK = Path(__file__).parents[2] / "docs/proofs/check.py"


def says_yes(proof, place):
    """Whether the checker that uses fractions alone accepts a proof."""
    proof.save(place)
    return subprocess.run([sys.executable, "-S", CHECK, place], capture_output=True, text=True).stdout.startswith("yes")


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("rule", RULES)
def test_fractions_alone_confirm_a_proof(rule, tmp_path):
    for _, proof in proofs(rule, 2):
        assert says_yes(proof, tmp_path / "proof.json")


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("rule", REMEMBERING)
def test_fractions_alone_confirm_a_proof_with_momentum(rule, tmp_path):
    for _, _, proof in remembering(rule, 2):
        assert says_yes(proof, tmp_path / "proof.json")


def test_fractions_refuse_what_is_false(tmp_path):
    _, right = proofs("sign")[0]
    place = tmp_path / "proof.json"
    _, turning = proofs("sign, long")[0]
    _, _, remembers = remembering("sign")[0]
    for proof, name, value in [
        (turning, "turns", turning.turns[:-1]),
        (turning, "turns", 0.0 * turning.turns),
        (turning, "turns", turning.turns[:0]),
        (turning, "rate", 1.01 * turning.high),
        (turning, "low", turning.high),
        (remembers, "memory", -remembers.memory),
        (remembers, "remembered", 100.0 * remembers.remembered),
        (remembers, "remembered", 0.0 * remembers.remembered),
        (remembers, "remembered", -remembers.remembered),
        (remembers, "momentum", 0.9999),
        (remembers, "rate", remembers.high),
    ]:
        assert not says_yes(replace(proof, **{name: value}), place), name
    wrong = {
        "rate": 1.01 * right.high,
        "longest": 1e3,
        "low": 1.001 * right.high,
        "high": 0.9 * right.low,
        "witness": 1.001 * right.witness,
        "weights": -right.weights,
        "point": 0.1 * right.point,
        "tolerance": right.norm,
        "selected": (right.selected + 1) % right.data.lengths,
        "leading": right.leading[:-1],
        "multipliers": 0.0 * right.multipliers,
        "head": -right.head,
    }
    for name, value in wrong.items():
        if np.size(value):
            assert not says_yes(replace(right, **{name: value}), place), name


def test_bounds_of_fractions_hold_what_they_enclose():
    bounds = runpy.run_path(str(CHECK.with_name("enclosures.py")))
    rng = np.random.default_rng(12)
    for x in [0.0, 1e-9, -1e-9, 0.5, 1.0, 2.0, *rng.normal(size=40) * 10.0 ** rng.uniform(-3, 1.5, 40)]:
        exact = Fraction(float(x))
        for name, value in (("exp", exact), ("log", abs(exact) + Fraction(1, 10**6)), ("root", abs(exact))):
            low, high = bounds[name](value)
            with mpmath.workdps(120):
                number = mpmath.mpf(value.numerator) / value.denominator
                true = {"exp": mpmath.exp, "log": mpmath.log, "root": mpmath.sqrt}[name](number)
                ends = [mpmath.mpf(end.numerator) / end.denominator for end in (low, high)]
                assert ends[0] <= true <= ends[1], (name, x)
                assert ends[1] - ends[0] < 1e-60 * max(1, abs(true))


def test_bounds_of_fractions_hold_the_singular_values_of_a_matrix(monkeypatch):
    monkeypatch.syspath_prepend(str(CHECK.parent))
    bounds, rng = runpy.run_path(str(CHECK.with_name("singular_values.py")))["bounds"], np.random.default_rng(13)
    for k in range(60):
        m, n = rng.integers(1, 7, 2)
        matrix = rng.normal(size=(m, n)) if k % 2 else np.outer(rng.normal(size=m), rng.normal(size=n))
        matrix = np.round(matrix) if k % 5 == 0 else matrix * 10.0 ** rng.uniform(-9, 9)
        with mpmath.workdps(60):
            values = mpmath.svd_r(mpmath.matrix(matrix.tolist()), compute_uv=False)
            for bound, true in zip(
                bounds([Fraction(float(x)) for x in matrix.ravel()], int(n)), (max(values), sum(values)), strict=True
            ):
                above = mpmath.mpf(bound.numerator) / bound.denominator
                assert true * (1 - mpmath.mpf(10) ** -40) <= above <= true * (1 + 1e-13)


def closes(proof, place):
    """Whether Coq closes every goal of a certificate."""
    proof.to_coq(place)
    return coq_says_yes(place)


def coq_says_yes(place):
    return subprocess.run(["coqc", place.name], cwd=place.parent, capture_output=True).returncode == 0


def has_coq():
    """Whether Coq and its library coq-interval are installed."""
    if shutil.which("coqc") is None:
        return False
    where = subprocess.run(["coqc", "-where"], capture_output=True, text=True).stdout.strip()
    return (Path(where) / "user-contrib/Interval").is_dir()


HAS_COQ = has_coq()


@pytest.mark.statement("X Thm 4")
@pytest.mark.skipif(not HAS_COQ, reason="needs coqc with the library coq-interval")
@pytest.mark.parametrize("rule", ["sign", "coordinate", "euclidean", "max-row", "momentum: sign", "momentum: max-row"])
def test_coq_closes_the_goals_of_a_proof(rule, tmp_path):
    kind = rule.removeprefix("momentum: ")
    *_, proof = (proofs(rule, 1) if kind == rule else remembering(kind, 1))[0]
    assert closes(proof, tmp_path / "proof.v")


@pytest.mark.skipif(not HAS_COQ, reason="needs coqc with the library coq-interval")
def test_coq_refuses_what_is_false(tmp_path):
    _, right = proofs("sign", 1)[0]
    place = tmp_path / "proof.v"
    for name, value in {
        "rate": 1.01 * right.high,
        "low": 1.001 * right.high,
        "high": 0.9 * right.low,
        "witness": 1.01 * right.witness,
    }.items():
        place.write_text(coq_file(replace(right, **{name: value})))
        assert not coq_says_yes(place), name
    right.to_coq(place)
    place.write_text(place.read_text().replace("Definition point := [", "Definition point := [1 + ", 1))
    assert not coq_says_yes(place)


def test_a_file_for_coq_is_written_only_for_what_it_covers(tmp_path):
    _, right = proofs("sign", 1)[0]
    with pytest.raises(InputError, match=r"ends with \.v"):
        right.to_coq(tmp_path / "proof.txt")
    with pytest.raises(InputError, match="underscores"):
        right.to_coq(tmp_path / "my-proof.v")
    with pytest.raises(InputError, match=r"verify\(\) confirms"):
        replace(right, rate=right.high).to_coq(tmp_path / "proof.v")
    _, other = proofs("l3", 1)[0]
    with pytest.raises(InputError, match="max-row norm"):
        other.to_coq(tmp_path / "proof.v")
    assert not list(tmp_path.iterdir())


def no_numbers(x):
    return [
        np.nan,
        np.inf,
        -np.inf,
        -abs(x) - 1.0,
        "1.0",
        None,
        1j,
        np.array([x]),
        [x],
        np.float32(x),
        10**400,
        np.array(x),
    ]


def no_vectors(x):
    wrong = [
        x[:, None],
        x.astype(np.float32),
        x.tolist(),
        np.append(x, 0.0),
        x.astype(object),
        None,
        "x",
        x.astype(complex),
    ]
    return [*wrong, np.where(x == x[0], np.nan, x), np.where(x == x[-1], np.inf, x)]


def no_tokens(x):
    return [
        x.astype(float),
        x.tolist(),
        None,
        np.append(x, x[:1], axis=0),
        x - 100,
        x + 100,
        x.astype(object),
        x.astype(bool),
    ]


def other_norms(c):
    class OwnNorm(type(c.steepest_in)):
        pass

    own = OwnNorm(3.0) if isinstance(c.steepest_in, ml.Lp) else OwnNorm()
    tampered = ml.Lp(3.0)
    object.__setattr__(tampered, "p", 0.5)
    return [None, type(c.steepest_in), own, "l-inf", 2.0, tampered]


FAULTS = {
    "data": lambda c: [
        None,
        c.data.X,
        c.data.as_batch(),
        *(c.data.with_keys(K) for K in (-c.data.K, 0.0 * c.data.K, 2.0 * c.data.K)),
    ],
    "head": lambda c: [*no_vectors(c.head), -c.head, 0.0 * c.head],
    "loss": lambda c: [None, Logistic, ml.losses.Loss(), "Logistic"],
    "point": lambda c: [*no_vectors(c.point), -c.point, 0.0 * c.point, 0.1 * c.point],
    "tolerance": lambda c: [*no_numbers(c.tolerance), -1e-300, 10.0 * c.norm, True],
    "selected": lambda c: [
        (c.selected + 1) % c.data.lengths,
        c.selected - 100,
        c.selected.astype(float),
        None,
        c.selected[:, None],
    ],
    "steepest_in": other_norms,
    "shape": lambda c: [
        None,
        list(c.shape),
        (),
        (0,),
        (-1, -c.data.d_key),
        (c.data.d_key + 1,),
        (1, 1, c.data.d_key),
        (float(c.data.d_key),),
    ],
    "longest": lambda c: [*no_numbers(c.longest), 0.0, 0.5 * c.limit, 1e6],
    "limit": lambda c: [*no_numbers(c.limit), 2.0 * c.longest],
    "leading": lambda c: [
        *no_tokens(c.leading),
        c.leading[:0],
        c.leading[::-1] if len(c.leading) > 1 else None,
        np.column_stack([c.leading[:, 0], c.selected[c.leading[:, 0]]]),
    ],
    "witness": lambda c: [*no_vectors(c.witness), 1.001 * c.witness, -c.witness, 0.0 * c.witness],
    "weights": lambda c: [*no_vectors(c.weights), -c.weights, 0.0 * c.weights],
    "multipliers": lambda c: [
        None,
        c.multipliers.tolist() or None,
        np.vstack([c.multipliers, np.ones((1, len(c.leading)))]),
        *([-1.0 - c.multipliers, 0.0 * c.multipliers, c.multipliers * np.nan] if c.multipliers.size else []),
    ],
    "turns": lambda c: [
        None,
        c.turns.tolist() or None,
        c.turns[:, 1:],
        np.vstack([c.turns, np.ones((1, 1 + c.data.d_key))]),
        *([c.turns[:-1], c.turns[:0], 0.0 * c.turns, -c.turns, c.turns * np.nan] if c.turns.size else []),
    ],
    "momentum": lambda c: [*no_numbers(c.momentum), 1.0, 0.9999999, 2.0, True],
    "memory": lambda c: [
        *(no_vectors(c.memory) if c.memory.any() else [None, c.memory[:-1], c.memory * np.nan]),
        *([-c.memory, 1e3 * c.memory] if c.memory.any() else []),
    ],
    "remembered": lambda c: [
        *(no_vectors(c.remembered) if c.remembered.any() else [None, c.remembered[:-1], c.remembered * np.nan]),
        *([-c.remembered, 0.0 * c.remembered, 1e3 * c.remembered] if c.remembered.any() else [c.remembered - 1.0]),
    ],
    "rate": lambda c: [*no_numbers(c.rate), 0.0, 1.01 * c.high, 2.0 * c.rate + 1.0],
    "low": lambda c: [np.nan, np.inf, "1.0", None, 1j, 1.001 * c.high, c.high + 1.0],
    "high": lambda c: [*no_numbers(c.high), 0.0, 0.99 * c.low if c.low > 0.0 else 0.0],
}


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize(
    "rule", ["sign", "coordinate", "l3", "muon", "max-row", "sign, long", "momentum: sign", "momentum: muon"]
)
def test_every_field_has_faults_and_none_of_them_verifies(rule):
    planted, kind = 0, rule.removeprefix("momentum: ")
    for *_, right in proofs(rule, 2) if kind == rule else remembering(kind, 2):
        assert set(FAULTS) == {field.name for field in fields(right)}
        for name, wrong_values in FAULTS.items():
            for wrong in wrong_values(right):
                planted += 1
                assert not replace(right, **{name: wrong}).verify().applies, (name, wrong)
    assert planted > 260


# ---- classifiers and several heads


MOST_STEPS = 3_000  # to a point from which steps of a classifier are covered


def rate_of(a, ratio_error, norm, form, h):
    """The rate of Eq. (11) if all rows lead, and the errors of their weights are bounded by ratio_error."""
    best = shortest_above(a.reshape(len(a), *form), np.ones(len(a)), norm=norm)
    gamma = 1.0 / norm.value(best.x) if best.status is ml.Status.OPTIMAL else np.nan
    D = max(norm.dual(row.reshape(form)) for row in a)
    D2 = max(norm.dual((r - s).reshape(form)) for r in a for s in a)
    return gamma - 2.0 * ratio_error * D - h * D2**2 / 8.0


def falls_at(rate, a, limit, risk, point, optimizer, h, n_steps=400):
    """Check that log F falls by rate · h at every step."""
    run = ml.descend(risk, start=point, optimizer=optimizer, n_steps=n_steps, record=ml.Record(range(n_steps + 1)))
    log_F = np.log(np.exp(-run.saved["x"].reshape(n_steps + 1, -1) @ a.T) @ limit)
    assert (np.diff(log_F) <= -rate * h + 1e-9).all()


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("norm", [ml.LInf(), ml.L1(), ml.Spectral(), ml.MaxRow()], ids=lambda norm: type(norm).__name__)
def test_classifiers_obey_the_theorem(norm):
    proved = 0
    for seed in range(8):
        rng = np.random.default_rng([31, seed])
        n, d, classes = 5, 4, 3
        H, y = rng.normal(size=(n, d)), np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
        risk, form = MulticlassRisk(H, y), (classes, d)
        e = np.eye(classes)
        rows = [(i, c) for i in range(n) for c in range(classes) if c != y[i]]
        a = np.array([np.outer(e[y[i]] - e[c], H[i]).ravel() for i, c in rows])
        inputs, limit = np.array([i for i, _ in rows]), np.full(len(rows), 1.0 / n)
        D2 = max(norm.dual((r - s).reshape(form)) for r in a for s in a)
        short = rate_of(a, 0.0, norm, form, 0.0)
        if not short > 0.0 or 6.0 * (D2 / short) ** 2 > MOST_STEPS:
            continue
        h = 2.0 * short / D2**2  # hD₂²/8 = γ/4
        optimizer = ml.SteepestDescent(norm, h)
        point = ml.descend(risk, start=np.zeros(form), optimizer=optimizer, n_steps=int(12.0 / (h * short))).final
        terms = np.exp(-a @ point.ravel())
        epsilon = np.bincount(inputs, terms, n)
        weights = limit * terms / (1.0 + epsilon[inputs])
        np.testing.assert_allclose(-risk.gradient(point).value().ravel(), weights @ a, rtol=1e-9, atol=1e-14)  # Eq. (1)
        zeta = float(np.max(epsilon / (1.0 + epsilon)))
        ratio = weights / (limit * terms)
        assert (ratio <= 1.0).all()
        assert (ratio >= 1.0 - zeta - 1e-12).all()  # Eq. (20)
        # F_0 bounds every term along the way, and ε is their sum.
        potential = limit @ terms
        largest = np.max(np.bincount(inputs, potential / limit, n))
        rate = rate_of(a, largest / (1.0 + largest), norm, form, h)
        if rate > 0.0:
            proved += 1
            falls_at(rate, a, limit, risk, point, optimizer, h)
    assert proved >= 3


@pytest.mark.statement("X Thm 4")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()])
def test_the_weights_of_several_heads_obey_their_bounds(loss):
    checked, steep = 0, STEEPNESS[type(loss)]
    for seed in range(12):
        rng = np.random.default_rng([32, seed])
        n, T, d, heads = 2, 3, 4, 2
        data, v = ml.TokenDataset(rng.normal(size=(n, T, d)), rng.choice([-1.0, 1.0], n)), rng.normal(size=d)
        risk = MultiHeadRisk(data, v, heads, loss)
        W = rng.uniform(3.0, 12.0) * rng.normal(size=(heads, d))
        logits, scores = np.einsum("itd,hd->hit", data.X, W), data.scores(v)
        alpha = logits.argmax(axis=-1)
        top = scores[np.arange(n), alpha]  # (heads, n)
        log_slope = np.log(-loss.derivative(top.mean(axis=0)))
        gap = np.take_along_axis(logits, alpha[..., None], -1) - logits
        delta = top[..., None] - scores
        other = np.arange(T) != alpha[..., None]
        eps = np.where(other, np.exp(-gap), 0.0).sum(-1)
        plus, minus = np.maximum(delta, 0.0).max(-1), np.maximum(-delta, 0.0).max(-1)
        shares = np.exp(-gap) / (1.0 + eps)[..., None]
        mean = (shares * scores).sum(-1)
        slope = -loss.derivative(mean.mean(axis=0)) / (n * heads)
        C = (
            slope[None, :, None]
            * shares[np.arange(heads)[:, None], np.arange(n), alpha][..., None]
            * (delta - (shares * delta).sum(-1)[..., None])
        )
        beta = np.where(other, C * np.exp(-gap), 0.0)
        a = np.take_along_axis(data.X[None], alpha[..., None, None], 2) - data.X[None]
        np.testing.assert_allclose(
            -risk.gradient(W).value(), np.einsum("hit,hitd->hd", beta, a), rtol=1e-8, atol=1e-13
        )  # Eq. (1)
        limit = np.exp(log_slope)[None, :, None] / (n * heads) * delta
        for h, i, t in np.argwhere(other & (delta > 0.0)):
            if eps[h, i] >= 1.0 or eps[h, i] * plus[h, i] >= delta[h, i, t]:
                continue
            checked += 1
            ratio = np.log(C[h, i, t] / limit[h, i, t])
            up = steep * np.mean(eps[:, i] * plus[:, i]) + eps[h, i] * minus[h, i] / delta[h, i, t]
            down = steep * np.mean(eps[:, i] * minus[:, i]) - np.log(1.0 - eps[h, i])
            down -= np.log(1.0 - eps[h, i] * plus[h, i] / delta[h, i, t])
            assert -down - 1e-9 <= ratio <= up + 1e-9  # Eq. (21)
    assert checked >= 10
