"""X-R6: attention sinks, fixed and learned. An input ends at the sink only if the sink is locally its best token."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.status import Status
from marginlens.typing import BoolArray, Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import proportion_interval

SEED = 6
N_INPUTS, N_TOKENS, WIDTH = 2, 4, 6
N_AROUND = 6  # tokens of an input in the plane, which mostly surround the origin
STEP = ml.NormalizedGD(0.5)
KINDS = ("fixed", "learned")


class X_R6(Claim):
    labels = ("A Def 2", "X Thm 1")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Predict, train and look at the neighbours of what was selected, with both kinds of sinks."""
        count, n_steps = (1000, 5000) if effort is Effort.PAPER else (60, 2000)
        progress.expect(4)
        numbers: dict[str, float] = {}
        parts, counts = [], {}
        for learned, kind in enumerate(KINDS):
            part = _ends(count, n_steps, bool(learned))
            parts.append(part)
            progress.advance()
            sink, hurts = part["at_sink"], part["hurts"]
            numbers[f"{kind}_naive_rule"] = float(np.mean(sink[hurts]))
            numbers[f"{kind}_at_sink_with_a_good_token"] = float(np.mean(sink[~hurts]))
            counts[kind] = [(int(sink[group].sum()), int(group.sum())) for group in (hurts, ~hurts)]
        for name in ("predicted", "proved", "sink_is_locally_best", "harmful_winner_is_shielded"):
            numbers[name] = float(np.mean(np.concatenate([part[name] for part in parts])))
        for learned, kind in enumerate(KINDS):
            numbers[f"{kind}_sink_of_surrounded_inputs"] = _around(count, n_steps, bool(learned))
            progress.advance()
        return Finding(_sentence(numbers, counts, count), numbers, {"counts": counts})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How many inputs end at the sink, of those whose tokens all hurt and of the others."""
        figure, (axes,) = ml.plotting.figure(width=6.4, height=3.8)
        for k, (kind, colour) in enumerate(zip(KINDS, (ml.plotting.GLOBAL, ml.plotting.LOCAL), strict=True)):
            successes, trials = np.array(finding.arrays["counts"][kind]).T
            low, high = proportion_interval(successes, trials)
            at, share = np.arange(2) + 0.38 * (k - 0.5), successes / trials
            axes.bar(at, share, 0.36, color=colour, label=f"{kind} sink")
            axes.errorbar(at, share, [share - low, high - share], fmt="none", color=ml.plotting.INK, capsize=3)
        axes.plot([-0.45, 0.45], [1.0, 1.0], color=ml.plotting.INK, ls="--", lw=1.2, label="naive rule")
        axes.plot([0.55, 1.45], [0.0, 0.0], color=ml.plotting.INK, ls="--", lw=1.2)
        axes.set_xticks([0, 1], ["all tokens score below the sink", "some token scores above it"])
        axes.set(ylabel="share of inputs that end at the sink", ylim=(-0.02, 1.08))
        axes.legend(frameon=False, loc="upper right")
        axes.set_title("Whether all tokens hurt does not decide the sink")
        return {"shares": figure}


def problems(count: int, n_tokens: int, width: int, learned: bool) -> tuple[ml.TokenDataset, FloatArray]:
    """Random keys and scores, both independent, with a sink; in about half of the inputs every token has a negative score."""
    rng = np.random.default_rng([SEED, n_tokens, width])
    keys = rng.standard_normal((count, N_INPUTS, n_tokens, width))
    scores = rng.uniform(-1.0, 1.0, keys.shape[:-1])
    hurts = rng.random((count, N_INPUTS, 1)) < 0.5
    labels = rng.choice([-1.0, 1.0], (count, N_INPUTS))
    data, head = ml.data.scored_tokens(keys, np.where(hurts, -np.abs(scores), scores), labels)
    return data.with_sink(learned=learned), head


def _ends(count: int, n_steps: int, learned: bool) -> dict[str, BoolArray]:
    """Where runs from zero end, as masks: of inputs (n,), of problems, and of the inputs to which a rule applies."""
    data, head = problems(count, N_TOKENS, WIDTH, learned)
    predictions: Any = ml.predict_limit(data, head, optimizer=STEP, max_problems=1)
    run = ml.descend(data, head, optimizer=STEP, n_steps=n_steps)
    outcomes = [prediction.outcome for prediction in predictions]
    predicted = np.array([outcome.selected for outcome in outcomes])
    proved = np.array([outcome.proved for outcome in outcomes])
    scores = data.scores(head)
    at_sink: Any = run.selected == N_TOKENS
    of_winner = np.take_along_axis(scores, run.selected[..., None], axis=-1)[..., 0]
    neighbours = ml.token_optimality(data, head, run.selected).neighbours
    return {
        "at_sink": at_sink.ravel(),
        "hurts": np.all(scores[..., :N_TOKENS] < 0.0, axis=-1).ravel(),
        "predicted": np.all(predicted == run.selected, axis=-1),
        "proved": proved,
        "sink_is_locally_best": np.all(~neighbours | (scores < 0.0), axis=-1)[at_sink & proved[:, None]],
        "harmful_winner_is_shielded": ~neighbours[..., N_TOKENS][~at_sink & (of_winner < 0.0) & proved[:, None]],
    }


def _around(count: int, n_steps: int, learned: bool) -> float:
    """The share of inputs that end at the sink, of those whose keys surround the origin, which a Farkas certificate proves."""
    data, head = problems(count, N_AROUND, 2, False)
    one_by_one = ml.TokenDataset(
        data.X.reshape(-1, 1, *data.X.shape[2:]),
        np.ones((count * N_INPUTS, 1)),
        data.K.reshape(-1, 1, *data.K.shape[2:]),
    )
    status = ml.att_svm(one_by_one, [N_AROUND]).status
    surrounded = np.array([each is Status.INFEASIBLE for each in status]).reshape(count, N_INPUTS)
    data, head = problems(count, N_AROUND, 2, learned)
    run = ml.descend(data, head, optimizer=STEP, n_steps=n_steps)
    return float(np.mean(run.selected[surrounded] == N_AROUND))


def _sentence(numbers: dict[str, float], counts: dict[str, Any], count: int) -> str:
    shares = [
        f"{numbers[f'{kind}_naive_rule']:.1%} ({counts[kind][0][0]} of {counts[kind][0][1]}) with a {kind} sink"
        for kind in KINDS
    ]
    good = [f"{numbers[f'{kind}_at_sink_with_a_good_token']:.1%}" for kind in KINDS]
    around = [f"{numbers[f'{kind}_sink_of_surrounded_inputs']:.1%}" for kind in KINDS]
    return (
        f"Of the inputs whose tokens all score below the sink, {' and '.join(shares)} end there; of the others, {good[0]} and {good[1]}. "
        f"Whenever an input of a proved run ends at the sink, all of the sink's neighbours score below it "
        f"({numbers['sink_is_locally_best']:.1%}), and a token of negative score wins only if the sink is not its neighbour "
        f"({numbers['harmful_winner_is_shielded']:.1%}). predict_limit names all tokens of {numbers['predicted']:.2%} of "
        f"{2 * count:,} runs in advance and proves {numbers['proved']:.2%}. Inputs in the plane whose keys surround the origin "
        f"end at the sink in {around[0]} (fixed) and {around[1]} (learned)."
    )
