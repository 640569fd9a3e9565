"""What C says about the cyclic correction: shortest minimiser, finite for the log-loss, orthogonal to the max-margin matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize

import tolerances
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError
from marginlens.graphs import cyclic_subset, priority_graphs
from marginlens.graphs import subspace as subspaces
from marginlens.graphs.cyclic import pseudo_graphs
from marginlens.losses.next_token import CrossEntropy, LogLoss, NextTokenLoss, SquaredLoss, SquaredProbability
from marginlens.nexttoken import cyclic_risk
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction
from marginlens.status import Status
from marginlens.svm.graph import graph_svm

FINITE, INFINITE, TRIVIAL = Status.FINITE, Status.INFINITE, Status.TRIVIAL


class Linear(NextTokenLoss):
    """-ŷ_y: a loss without the log-loss's barrier."""

    def value(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return -outputs[np.arange(len(labels)), labels]

    def derivative(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        slope = np.zeros_like(outputs)
        slope[np.arange(len(labels)), labels] = -1.0
        return slope

    def second(self, outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.zeros((*outputs.shape, outputs.shape[1]))


def log_risk(ds: SequenceDataset) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The log-loss over the cyclic subset and its gradient by W, flattened, from the definition."""
    subset = cyclic_subset(ds)
    assert len(subset)

    def at(flat: np.ndarray) -> tuple[float, np.ndarray]:
        W = flat.reshape(ds.d_model, ds.d_model)
        value, gradient = 0.0, np.zeros_like(W)
        for i in range(len(subset)):
            ids, label = subset[i]
            query = ds.E[subset.last[i]]
            logits = ds.E[ids] @ W @ query
            s = np.exp(logits - logits.max())
            s /= s.sum()
            hit = ids == label
            value -= np.log(s[hit].sum())
            gradient += np.outer((s - np.where(hit, s, 0.0) / s[hit].sum()) @ ds.E[ids], query)
        return value / len(subset), gradient.ravel() / len(subset)

    return at


@pytest.mark.statement("C Def 3")
@pytest.mark.parametrize("shape", [(6, 8, 8, 4), (8, 4, 12, 4)])
def test_correction_is_the_shortest_minimizer_over_all_matrices(shape: tuple[int, int, int, int]) -> None:
    """A general minimiser from random starts ends in other minima: as low, longer, and equal in S_cyc."""
    rng = np.random.default_rng(0)
    for _ in range(3):
        ds = cyclic_sequences(*shape, rng)
        found, risk = cyclic_correction(ds), log_risk(ds)
        assert found.status is FINITE
        assert found.risk == pytest.approx(risk(found.x.ravel())[0], rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
        for _ in range(2):
            start = rng.normal(size=ds.d_model**2)
            other = minimize(risk, start, jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000}).x
            W = other.reshape(found.x.shape)
            assert risk(other)[0] == pytest.approx(found.risk, abs=tolerances.ROUNDING, rel=0.0)
            assert np.linalg.norm(W) > np.linalg.norm(found.x)
            np.testing.assert_allclose(found.subspace.project(W), found.x, rtol=0.0, atol=tolerances.GENERAL_MINIMISER)


@pytest.mark.statement("C Def 3")
@pytest.mark.parametrize("counts", [(1, 1), (3, 1), (1, 40), (20_000, 1)])
def test_two_tokens_have_the_closed_form(counts: tuple[int, int]) -> None:
    """The gap between two tied tokens is the log of how much more often one follows, less the log of their occurrences."""
    a, b = counts
    ds = SequenceDataset([[0, 0, 0, 1]] * (a + b), [0] * a + [1] * b, np.eye(2))
    found = cyclic_correction(ds)
    assert found.x[0, 1] - found.x[1, 1] == pytest.approx(
        np.log(a / b) - np.log(3.0), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING
    )
    assert not found.x[:, 0].any()
    share = a / (a + b)
    assert found.curvature == pytest.approx(
        2.0 * share * (1.0 - share), rel=tolerances.CONDITIONED, abs=tolerances.ROUNDING
    )


@pytest.mark.statement("C Lemma 7")
def test_the_log_loss_always_has_one_finite_correction() -> None:
    """On random data of all shapes: finite, with a gradient of at most 1e-10, positive curvature, from any start."""
    rng = np.random.default_rng(1)
    for shape in [(6, 8, 6, 4), (4, 3, 20, 3), (10, 5, 40, 6), (12, 20, 60, 5)]:
        for _ in range(3):
            ds = cyclic_sequences(*shape, rng)
            found = cyclic_correction(ds)
            assert found.status is FINITE
            assert found.gradient_norm <= tolerances.CORRECTION_GRADIENT
            assert found.residual() <= tolerances.CORRECTION_GRADIENT
            assert found.curvature > 0.0
            start = 10.0 ** rng.uniform(0.0, 5.0) * rng.normal(size=found.x.shape)  # however far
            np.testing.assert_allclose(
                cyclic_correction(ds, start=start).x, found.x, rtol=0.0, atol=tolerances.CONDITIONED
            )


@pytest.mark.statement("C Lemma 7")
def test_the_risk_rises_without_bound_in_every_direction_of_the_subspace() -> None:
    rng = np.random.default_rng(2)
    ds = cyclic_sequences(6, 8, 12, 4, rng)
    found, risk = cyclic_correction(ds), log_risk(ds)
    for _ in range(20):
        away = np.tensordot(rng.normal(size=len(found.basis)), found.basis, axes=1)
        away /= np.linalg.norm(away)
        near, far = (risk((found.x + length * away).ravel())[0] for length in (200.0, 400.0))
        assert far - near > found.risk * tolerances.ROUNDING
        assert far > found.risk + 1.0


@pytest.mark.statement("C Lemma 2")
def test_correction_and_margin_are_orthogonal() -> None:
    rng = np.random.default_rng(3)
    for shape in [(6, 8, 6, 4), (9, 6, 7, 4)]:
        for _ in range(5):
            ds = cyclic_sequences(*shape, rng)
            graphs = priority_graphs(ds)
            W, mm = cyclic_correction(ds).x, graph_svm(ds.E, graphs).x
            for last, graph in graphs.items():
                for members in graph.components:
                    apart = ds.E[members] - ds.E[members].mean(axis=0)
                    np.testing.assert_allclose(apart @ mm @ ds.E[last], 0.0, rtol=0.0, atol=tolerances.ORTHOGONAL)
            assert abs(np.sum(W * mm)) <= tolerances.ORTHOGONAL
            assert np.linalg.norm(W) > 0.0 or not log_risk(ds)(W.ravel())[1].any()


# ---- ways of computing it


def limits(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "products":
        monkeypatch.setattr(cyclic_risk, "MAX_DENSE_RANK", 0)
    if way in ("iteration", "products"):
        monkeypatch.setattr(subspaces, "_MAX_FACTORED", 0)
    if way == "iteration":
        for name in ("_MAX_BASIS", "_QUICK_BASIS"):
            monkeypatch.setattr(subspaces, name, 0)


@pytest.mark.parametrize("way", ["products", "iteration"])
@pytest.mark.parametrize("shape", [(12, 16, 30, 4), (9, 5, 20, 4)])
@pytest.mark.parametrize("loss", [LogLoss(), SquaredLoss()], ids=lambda one: type(one).__name__)
def test_large_problems_have_the_same_correction(
    loss: NextTokenLoss, shape: tuple[int, int, int, int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a basis, by products alone, the same minimum and the same curvature come out."""
    ds = cyclic_sequences(*shape, 1)
    plain = cyclic_correction(ds, loss=loss)
    assert plain.status is FINITE
    expected = plain.curvature
    limits(way, monkeypatch)
    other = cyclic_correction(ds, loss=loss)
    assert other.status is FINITE
    assert other.residual() <= tolerances.CORRECTION_GRADIENT
    np.testing.assert_allclose(other.x, plain.x, rtol=0.0, atol=tolerances.CONDITIONED)
    if way == "iteration":
        assert other.curvature == pytest.approx(expected, rel=tolerances.LANCZOS, abs=tolerances.ROUNDING)


def test_one_hot_text_is_solved_by_component() -> None:
    """One-hot rows, many samples: every component is solved by itself, with the same logits as in a skew basis."""
    rng = np.random.default_rng(4)
    ids = rng.choice(12, p=np.arange(12, 0, -1) / 78, size=(3000, 6))
    labels = ids[np.arange(3000), rng.integers(6, size=3000)]
    hot = cyclic_correction(SequenceDataset(ids, labels, np.eye(12)))
    turn = np.linalg.qr(rng.normal(size=(12, 12)))[0] @ np.diag(np.linspace(0.5, 2.0, 12))
    turned = cyclic_correction(SequenceDataset(ids, labels, turn))
    assert hot.gradient_norm <= tolerances.CORRECTION_GRADIENT
    logits = [one.subspace.centre(one.subspace.cells(one.x)) for one in (hot, turned)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=0.0, atol=tolerances.CONDITIONED)


# ---- corrections that do not exist


@pytest.mark.statement("C Lemma 7")
def test_a_loss_without_a_barrier_separates_a_component() -> None:
    ds = SequenceDataset([[0, 1]] * 3, [0, 0, 1], np.eye(2))
    found = cyclic_correction(ds, loss=Linear())
    assert found.status is INFINITE
    assert np.isnan(found.x).all()
    assert np.isnan(found.curvature)
    assert np.isnan(found.residual())
    assert found.reason.code == "correction.runaway"
    assert (found.reason.numbers["last"], found.reason.numbers["order"]) == (1, "[0] > [1]")
    assert found.reason.numbers["limit"] == pytest.approx(-2.0 / 3.0, rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    assert found.direction is not None
    assert found.risk == pytest.approx(-2.0 / 3.0, rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    assert found.objective is not None
    risks = [
        found.objective.at(found.subspace.cells(length * found.direction)).value
        for length in (0.0, 1.0, 3.0, 10.0, 30.0)
    ]
    assert (np.diff(risks) < 0.0).all()
    assert min(risks) > found.risk
    assert cyclic_correction(ds).status is FINITE


@pytest.mark.statement("C Lemma 7")
def test_the_linear_loss_is_infinite_unless_labels_balance() -> None:
    balanced = SequenceDataset([[0, 1]] * 4, [0, 0, 1, 1], np.eye(2))
    found = cyclic_correction(balanced, loss=Linear())
    assert found.status is FINITE
    assert found.reason.code == "correction.local"
    assert found.reason.numbers["directions"] == found.flat == 1
    assert not found.x.any()


@pytest.mark.parametrize("general", [False, True], ids=["C Eᵀ = I", "general head"])
@pytest.mark.parametrize(
    "loss", [SquaredLoss(), CrossEntropy(), SquaredProbability()], ids=lambda one: type(one).__name__
)
def test_other_losses_end_in_a_minimum_or_a_proof(loss: NextTokenLoss, general: bool) -> None:
    """Finite: no gradient, no negative curvature. Infinite: no descent from the start gets below the limit by more than rounding."""
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(5):
        ds = cyclic_sequences(6, 8, 12, 4, rng)
        head = ds.E if general else None
        found = cyclic_correction(ds, loss=loss, head=head)
        seen.add(found.status)
        assert found.status in (FINITE, INFINITE)
        if found.status is FINITE:
            assert found.residual() <= tolerances.CORRECTION_GRADIENT
            assert found.curvature >= -tolerances.ROUNDING
            assert found.reason.code == "correction.local"
            assert found.reason.numbers["start"].code == "correction_start.zero"
        else:
            check_the_limit(found)
    assert INFINITE in seen or isinstance(loss, SquaredLoss)


def check_the_limit(found: CyclicCorrection) -> None:
    """The risk falls along the direction far out, and a point there is stationary up to what is still falling."""
    assert found.direction is not None
    assert found.objective is not None
    space, land = found.subspace, found.objective
    scale = 4.0**land.power

    def slope(c: np.ndarray) -> np.ndarray:
        return scale * np.tensordot(found.basis, land.gradient(scale * np.tensordot(c, found.basis, axes=1)), axes=2)

    np.testing.assert_allclose(space.project(found.direction), found.direction, rtol=0.0, atol=tolerances.CONDITIONED)
    end = minimize(
        lambda c: land.at(space.cells(np.tensordot(c, found.basis, axes=1))).value,
        np.zeros(space.rank),
        jac=slope,
        method="BFGS",
        options={"gtol": 1e-5, "maxiter": 100},
    )
    assert end.fun > found.risk - tolerances.OTHER_MINIMUM


# ---- the local version


@pytest.mark.statement("C §6")
def test_the_local_correction_uses_the_given_start() -> None:
    rng = np.random.default_rng(8)
    ds = cyclic_sequences(8, 8, 6, 6, rng)
    graphs = pseudo_graphs(ds, 0.5 * rng.normal(size=(8, 8)), 0.01)
    found = cyclic_correction(ds, graphs=graphs, head=ds.E, loss=CrossEntropy(), start=rng.normal(size=(8, 8)))
    assert found.status is INFINITE or found.reason.numbers["start"].code == "correction_start.given"
    lone = pseudo_graphs(ds, 1e4 * rng.normal(size=(8, 8)), 0.01)
    assert cyclic_correction(ds, graphs=lone, head=ds.E, loss=CrossEntropy()).status is TRIVIAL


@pytest.mark.statement("C §6", "C Lemma 7")
def test_a_likelihood_of_selected_tokens_may_have_no_finite_correction() -> None:
    """Weights that select both tokens tie them, but every label is the same: its likelihood grows for ever."""
    ds = SequenceDataset([[0, 1]] * 2, [0, 0], np.eye(2))
    found = cyclic_correction(ds, graphs=pseudo_graphs(ds, np.zeros((2, 2)), 0.01))
    assert found.status is INFINITE
    assert found.direction is not None
    assert found.reason.code == "correction.runaway"
    assert (found.reason.numbers["last"], found.reason.numbers["order"]) == (1, "[0] > [1]")
    np.testing.assert_allclose(found.direction, [[0.0, 0.5], [0.0, -0.5]], rtol=0.0, atol=tolerances.ROUNDING)


@pytest.mark.statement("C Def 3")
@pytest.mark.parametrize("scale", [2.0**-500, 2.0**-60, 2.0**10, 2.0**60, 2.0**400])
@pytest.mark.parametrize("shape", [(6, 8, 12, 4), (8, 4, 12, 4)])
def test_the_correction_of_scaled_embeddings_is_divided_by_the_square(
    shape: tuple[int, int, int, int], scale: float
) -> None:
    ds = cyclic_sequences(*shape, np.random.default_rng(2))
    sequences = [ds[i][0] for i in range(len(ds))]
    found, scaled = cyclic_correction(ds), cyclic_correction(SequenceDataset(sequences, ds.labels, scale * ds.E))
    assert scaled.status is found.status is FINITE
    np.testing.assert_array_equal(scaled.x * scale * scale, found.x)
    assert scaled.curvature / scale / scale / scale / scale in (found.curvature, 0.0, np.inf)
    assert scaled.residual() / scale / scale <= tolerances.CORRECTION_GRADIENT


def test_a_zero_last_token_separates_nothing() -> None:
    found = cyclic_correction(SequenceDataset([[0, 1, 0], [1, 0, 0]], [0, 1], [[0.0, 0.0], [1.0, 2.0]]))
    assert found.status is FINITE
    assert not found.x.any()
    assert found.basis.shape == (0, 2, 2)
    assert found.curvature == np.inf


def test_an_overflowing_correction_is_not_finite() -> None:
    ds = SequenceDataset([[0, 1]] * 3, [0, 1, 1], 1e-170 * np.eye(2))
    assert cyclic_correction(ds).status is Status.INACCURATE


def test_an_unselected_label_has_no_log_likelihood() -> None:
    ds = SequenceDataset([[0, 1, 2]], [0], np.eye(3))
    graphs = pseudo_graphs(ds, np.diag([-50.0, 0.0, 0.0]) @ np.ones((3, 3)), 0.01)
    with pytest.raises(InputError) as error:
        cyclic_correction(ds, graphs=graphs)
    assert (error.value.argument, error.value.got) == ("start", "an infinite loss at sample 0")
    assert cyclic_correction(ds, graphs=graphs, loss=SquaredLoss()).status is FINITE


# ---- what comes back


def test_acyclic_data_need_no_correction() -> None:
    ds = SequenceDataset([[0, 1, 2], [1, 2]], [0, 1], np.eye(3))
    found = cyclic_correction(ds)
    assert found.status is TRIVIAL
    assert not found.x.any()
    assert found.basis.shape == (0, 3, 3)
    assert found.curvature == np.inf
    assert found.residual() == found.gradient_norm == found.risk == 0.0
    assert repr(found) == "CyclicCorrection(TRIVIAL, norm=0, gradient=0.0e+00, 0 components, d_model=3)"
