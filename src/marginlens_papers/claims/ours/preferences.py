"""X-R3: preferences between responses. The response that wins in the end is known before training, and it is rarely the chosen one."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.errors import InputError
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import proportion_interval

SEED = 3
SIZES = ((5, 10, 20), (10, 10, 20), (20, 20, 50))  # pairs, responses to each prompt, features
BETA = 0.1
PLAIN = ml.GradientDescent(0.3 / BETA**2)
NORMALIZED = ml.NormalizedGD(1.0 / BETA)
CHOSEN, REJECTED = 0, 1  # the features are exchangeable, so that any two responses would do


class X_R3(Claim):
    labels = ("A ATT-SVM", "X R3", "X Thm 1")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Predict the winners, train long normalised runs and some plain ones, and certify where the plain ones go."""
        full = effort is Effort.PAPER
        count, n_plain, n_steps = (60, 10, 10**6) if full else (12, 3, 3 * 10**4)
        saved = np.unique(np.geomspace(1, n_steps, 4 * int(np.log10(n_steps)) + 1).astype(np.int64))
        progress.expect(2 * len(SIZES))
        numbers: dict[str, float] = {}
        curves, counts = [], []
        led, certified, certified_long = [], [], []
        for size in SIZES:
            problems = [_problem(size, k) for k in range(count)]
            winners = np.array([found.winners for _, _, _, found in problems])
            ends = _train(problems, NORMALIZED, 10_000 if full else 4_000, None)[-1]
            name = "_".join(map(str, size))
            numbers[f"not_chosen_{name}"] = float(np.mean(winners != CHOSEN))
            numbers[f"normalized_{name}"] = float(np.mean(winners == _best(problems, ends)))
            counts.append((int(np.sum(winners != CHOSEN)), winners.size))
            progress.advance()
            some = problems[:n_plain]
            path = _train(some, PLAIN, n_steps, ml.Record(steps=saved.tolist()))
            curves.append([float(np.mean(winners[:n_plain] == _best(some, points))) for points in path])
            numbers[f"plain_{name}"] = curves[-1][-1]
            numbers[f"less_likely_{name}"] = float(np.mean(_less_likely(some, path[-1])))
            numbers[f"proved_{name}"] = float(np.mean([found.proved for _, _, _, found in problems]))
            leads = winners[:n_plain] == _best(some, path[-1])
            proofs = np.array([_is_certified(*pair, PLAIN) for pair in zip(some, path[-1], strict=True)])
            led.append((leads | proofs[:, None]).ravel())
            certified += proofs.tolist()
            certified_long += [_is_certified(*pair, NORMALIZED) for pair in zip(some, ends, strict=False)]
            progress.advance()
        numbers["leads_or_certified"] = float(np.mean(np.concatenate(led)))
        numbers["certified_plain"], numbers["certified_normalized"] = map(
            float, map(np.mean, (certified, certified_long))
        )
        arrays = {"steps": saved.tolist(), "curves": curves, "counts": counts}
        return Finding(_sentence(numbers, n_steps, len(certified)), numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How often the winner so far is the predicted one during plain runs, and the naive answer."""
        figure, (axes,) = ml.plotting.figure(width=6.4, height=3.8)
        colours = (ml.plotting.LOCAL, ml.plotting.NEITHER, ml.plotting.GLOBAL)
        curves = zip(SIZES, colours, finding.arrays["curves"], finding.arrays["counts"], strict=True)
        for (pairs, responses, _), colour, shares, (wrong, total) in curves:
            axes.semilogx(finding.arrays["steps"], shares, color=colour, label=f"{pairs} pairs, {responses} responses")
            low, high = proportion_interval(total - wrong, total)
            axes.axhspan(float(low), float(high), color=colour, alpha=0.35, lw=0)
        axes.set(xlabel="steps of plain descent", ylabel="share of prompts", ylim=(0, 1.03))
        axes.legend(loc="center right", title="predicted response leads", bbox_to_anchor=(1.0, 0.64))
        axes.annotate("chosen response wins", (10.0, 0.3))
        axes.set_title("The winner is the predicted response, and rarely the chosen one")
        return {"winners": figure}


_Problem = tuple[FloatArray, FloatArray, ml.SoftmaxRisk, ml.theory.WinningResponses]


def _problem(size: tuple[int, int, int], k: int) -> _Problem:
    """Gaussian features, one pair for each prompt, and a log-linear reference; with the winners that are predicted."""
    rng = np.random.default_rng([SEED, *size, k])
    features = rng.standard_normal(size)
    start = rng.standard_normal(size[-1]) / np.sqrt(size[-1])
    first, second = (np.full(size[0], which) for which in (CHOSEN, REJECTED))
    risk = ml.risk.preferences(features, first, second, reference=_log_policy(features, start), beta=BETA)
    return features, start, risk, ml.theory.winning_responses(features, risk)


def _train(problems: list[_Problem], optimizer: Any, n_steps: int, record: Any) -> FloatArray:
    """Train all problems at once from their references; return the points kept, (n_saved, n_problems, d)."""
    parts = [(risk.data.K, risk.data.offsets) for _, _, risk, _ in problems]
    keys, offsets = (np.stack(part) for part in zip(*parts, strict=True))
    scores = np.broadcast_to([1.0, 0.0], offsets.shape)
    risks = ml.SoftmaxRisk(keys, scores, offsets, ml.losses.LogProbability())
    starts = np.stack([start for _, start, _, _ in problems])
    run = ml.descend(risks, optimizer=optimizer, n_steps=n_steps, start=starts, record=record)
    return run.final[None] if record is None else np.moveaxis(run.saved["x"], 1, 0)


def _log_policy(features: FloatArray, theta: FloatArray) -> FloatArray:
    logits = features @ theta
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _best(problems: list[_Problem], points: FloatArray) -> IntArray:
    """The response to each prompt that is most likely, (n_problems, n_prompts)."""
    return np.array([np.argmax(p[0] @ point, axis=-1) for p, point in zip(problems, points, strict=True)])


def _less_likely(problems: list[_Problem], points: FloatArray) -> FloatArray:
    """Whether chosen responses are less likely than before training, (n_problems, n_prompts)."""
    pairs = zip(problems, points, strict=True)
    return np.array([_log_policy(p[0], x)[:, CHOSEN] < _log_policy(p[0], p[1])[:, CHOSEN] for p, x in pairs])


def _is_certified(problem: _Problem, point: FloatArray, optimizer: Any) -> bool:
    """Whether X Theorem 1 proves that steps from this point on converge to the direction that was predicted."""
    _, _, risk, found = problem
    try:
        proof: Any = ml.certify(risk.data, risk.head, point, optimizer=optimizer, loss=risk.loss)
    except InputError:
        return False
    return bool(proof.verify().applies and np.linalg.norm(proof.direction - found.direction) <= 2.0 * found.error)


def _sentence(numbers: dict[str, float], n_steps: int, n_runs: int) -> str:
    names = ["_".join(map(str, size)) for size in SIZES]
    listed = {
        what: ", ".join(f"{numbers[f'{what}_{name}']:.0%}" for name in names)
        for what in ("not_chosen", "normalized", "plain", "less_likely", "proved")
    }
    return (
        f"With (pairs, responses, features) = {', '.join(map(str, SIZES))} the response that wins in the end is not the chosen one "
        f"for {listed['not_chosen']} of the prompts. It is predicted before training, with a proof of the limit in {listed['proved']} "
        f"of the problems. Normalised runs end at it for {listed['normalized']} of the prompts, and X Theorem 1 certifies the limit of "
        f"{numbers['certified_normalized']:.0%} of {n_runs} of them. After {n_steps:,} plain steps it leads for {listed['plain']}, and "
        f"{numbers['certified_plain']:.0%} of these {n_runs} runs are certified; either is true for "
        f"{numbers['leads_or_certified']:.1%} of the prompts. By then the chosen response is less likely than before training for "
        f"{listed['less_likely']}."
    )
