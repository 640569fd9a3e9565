"""Why logits explode: the page's runs are the library's, and what it predicts of them is true."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import needs_node, run_in_page
from marginlens.lab.assemble import page_words
from tolerances import ROUNDING, SIX_DIGITS

pytestmark = needs_node

CODE = """
import { growth } from "../kernels/growth.js";
const { fields, ...data } = globalThis.labWords.growth;
answer(given.map((settings) => {
  const { runs, advance } = growth(data, settings);
  while (!advance());
  return Object.fromEntries(runs.map(({ name, curve, plain, predicted }) => [name, { curve, plain, predicted }]));
}));
"""
NORMS = {"Adam": ml.LInf(), "Muon": ml.Spectral()}
OPTIMIZERS = {
    "GD": ml.GradientDescent(0.9),
    "Adam": ml.Adam(0.03, betas=(0.9, 0.95)),
    "Muon": ml.SteepestDescent(ml.Spectral(), 0.03),
}


@cache
def layer() -> tuple[ml.TokenDataset, np.ndarray, np.ndarray]:
    """Tokens, queries and head of the page's layer; the first token of every input is its best."""
    data = page_words()["growth"]
    return ml.TokenDataset(np.array(data["tokens"]), np.ones(4)), np.array(data["queries"]), np.array(data["head"])


def measures(W: np.ndarray) -> dict[str, float]:
    data, queries, _ = layer()
    logits = np.einsum("iq,qd,itd->it", queries, W, data.X)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    entropy = -np.sum(shares * np.log(np.maximum(shares, 1e-300)), axis=1).mean()
    return {"logit": np.abs(logits).max(), "margin": (logits[:, :1] - logits[:, 1:]).min(), "entropy": entropy}


def grown(*settings: dict[str, float]) -> list[dict[str, Any]]:
    return run_in_page(CODE, [{"rate": 0.03, "decay": 0, "clip": 0, **entry} for entry in settings])


def test_limits_are_the_max_margin_directions_of_the_norms() -> None:
    data, queries, head = layer()
    assert (np.argmax(data.X @ head, axis=1) == 0).all()
    for name, norm in NORMS.items():
        solution = ml.att_svm(data, [0] * 4, norm=norm, query=queries)
        limit = page_words()["growth"]["limits"][name]
        assert limit["margin"] == pytest.approx(solution.margin, rel=1e-9, abs=ROUNDING)
        assert limit["logit"] == pytest.approx(
            measures(solution.direction.reshape(4, 4))["logit"], rel=1e-4, abs=ROUNDING
        )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_runs_without_decay_equal_the_librarys(name: str) -> None:
    data, queries, head = layer()
    risk = ml.AttentionRisk(data, head).as_matrix(queries)
    run = ml.descend(risk, optimizer=OPTIMIZERS[name], n_steps=1000)
    [found] = grown({})
    assert found[name]["curve"] == found[name]["plain"]
    expected = measures(run.final)
    for key, tolerance in {"logit": 1e-8, "margin": 1e-8, "entropy": 1e-6}.items():
        assert found[name]["curve"][-1][key] == pytest.approx(expected[key], rel=tolerance, abs=ROUNDING)


def test_decay_and_clip_scale_the_weights_at_each_step() -> None:
    data, queries, head = layer()
    decay, clip = 0.2, 6.0
    W = np.zeros((4, 4))
    for _ in range(50):
        W *= 1 - 0.03 * decay
        logits = np.einsum("iq,qd,itd->it", queries, W, data.X)
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        scores = data.X @ head
        outputs = (shares * scores).sum(axis=1, keepdims=True)
        weights = -shares * (scores - outputs) / (1 + np.exp(outputs))
        U, _, Vt = np.linalg.svd(np.einsum("iq,it,itd->qd", queries, weights, data.X))
        W -= 0.03 * U @ Vt
        W *= min(1.0, clip / measures(W)["logit"])
    [found] = grown({"decay": decay, "clip": clip})
    assert found["Muon"]["curve"][5] == pytest.approx(measures(W), rel=1e-6, abs=ROUNDING)
    assert max(entry["logit"] for entry in found["Muon"]["curve"]) == pytest.approx(clip, rel=SIX_DIGITS, abs=ROUNDING)


GRID = [{"rate": rate, "decay": decay} for rate in (0.01, 0.03, 0.1) for decay in (0, 0.01, 0.1, 0.3)]


@pytest.mark.slow
def test_margins_of_muon_approach_their_bound_from_below() -> None:
    best = page_words()["growth"]["limits"]["Muon"]["margin"]
    for settings, found in zip(GRID, grown(*GRID), strict=True):
        margins = np.array([entry["margin"] for entry in found["Muon"]["curve"]])
        line = np.array(found["Muon"]["predicted"]["margins"])
        steps, size = np.arange(0, 1001, 10), settings["rate"]
        decay = settings["decay"]
        lengths = (1 - (1 - size * decay) ** steps) / decay if decay else size * steps
        np.testing.assert_allclose(line, best * lengths, rtol=1e-9, atol=0.0)
        assert (margins <= line * (1 + 1e-9) + 1e-12).all()
        assert margins[-1] >= 0.91 * line[-1]
        if decay:
            assert margins[-1] < best / decay


def test_slopes_equal_the_predicted_ones() -> None:
    rates = [{"rate": rate} for rate in (0.01, 0.03, 0.1)]
    for found in grown(*rates):
        for name, key in [("Muon", "margin"), ("Muon", "logit"), ("Adam", "margin")]:
            curve = np.array([entry[key] for entry in found[name]["curve"]])
            line = np.array(found[name]["predicted"][f"{key}s"])
            assert curve[100] - curve[50] == pytest.approx(line[100] - line[50], rel=0.02, abs=ROUNDING)
        plain = found["GD"]["curve"]
        assert plain[100]["margin"] - plain[50]["margin"] == pytest.approx(np.log(2), rel=0.1, abs=ROUNDING)


def test_a_clip_holds_the_largest_logit() -> None:
    for found in grown({"clip": 20}, {"clip": 5, "rate": 0.1}):
        clip = 20 if found["Muon"]["curve"][-1]["logit"] > 10 else 5
        for name in ("Adam", "Muon"):
            assert max(entry["logit"] for entry in found[name]["curve"]) <= clip * (1 + 1e-12)
            assert found[name]["curve"][-1]["logit"] == pytest.approx(clip, rel=SIX_DIGITS, abs=ROUNDING)
