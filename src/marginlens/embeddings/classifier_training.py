"""How the text classifier learns: AdamW with a falling rate on most of the texts, and the rest say which step to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.embeddings.minibatches import batches_of, distinct_tokens
from marginlens.embeddings.one_layer import CompiledOneLayer
from marginlens.embeddings.parameters import initial_parameters
from marginlens.embeddings.settings import TrainingSettings
from marginlens.errors import reject
from marginlens.progress import Progress

HELD_OUT = 0.1  # share of the texts that training never steps on
FEWEST_HELD_OUT = 10  # with fewer there is nothing to learn from them: all texts are trained on, for all steps
FEWEST_STEPS = 300
BETWEEN_CHECKS = 25  # steps
PATIENCE = 10  # checks without a smaller loss after which training stops


@dataclass(frozen=True, repr=False)
class LearnedProducts:
    """`a` = ⟨E_s,p⟩ and `b` = ⟨E_s,v⟩ (n_tokens,), ‖p‖, and how they were found.

    `steps` were taken and `kept_step` is the one whose values these are; `held_out` counts the texts that chose it and `held_out_loss`
    is their mean loss there, NaN where there were too few.
    """

    a: FloatArray
    b: FloatArray
    norm_p: float
    steps: int
    kept_step: int
    held_out: int
    held_out_loss: float

    def __repr__(self) -> str:
        return f"LearnedProducts({len(self.a)} tokens, step {self.kept_step} of {self.steps}, held-out loss {self.held_out_loss:.4g})"


def outputs(tokens: IntArray, offsets: IntArray, a: FloatArray, b: FloatArray) -> FloatArray:
    r"""What the one-layer model says about each sequence; zero where a sequence has no token.

    .. math:: f(X) = \frac{\sum_t e^{a_{x_t}} b_{x_t}}{\sum_t e^{a_{x_t}}},\quad a = Ep,\ b = Ev

    Args:
        tokens: (n_positions,) ids. offsets: (n_samples + 1,) where each sequence starts. a, b: (n_tokens,).
    Returns:
        (n_samples,) f.
    """
    f = np.zeros(len(offsets) - 1)
    full = np.flatnonzero(np.diff(offsets))
    if len(full):
        starts, lengths = offsets[:-1][full], np.diff(offsets)[full]
        logits = a[tokens]
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, starts), lengths))
        f[full] = np.add.reduceat(weights * b[tokens], starts) / np.add.reduceat(weights, starts)
    return f


def n_steps(n_texts: int, settings: TrainingSettings) -> int:
    """Steps that training takes at most."""
    trained_on = n_texts - n_held_out(n_texts)
    return max(FEWEST_STEPS, settings.epochs * len(batches_of(trained_on, settings.batch)))


def n_held_out(n_texts: int) -> int:
    """Texts that training never steps on."""
    share = int(HELD_OUT * n_texts)
    return share if share >= FEWEST_HELD_OUT else 0


def learn_products(data: LabelledSequences, settings: TrainingSettings, progress: Progress) -> LearnedProducts:
    r"""Train E, p and v by AdamW with a rate that falls to zero, and keep the values at which the held-out texts lose least.

    Args:
        data: labelled sequences. settings: width, passes, rate and decay; fewer passes are made where the held-out loss rises.
        progress: hears of every step.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = _learned(data, settings, progress)
    if not (np.isfinite(found.a).all() and np.isfinite(found.b).all()):
        remedy = "A rate of .01 and a decay of .1 suit most texts."
        got = f"{settings.learning_rate:g} with weight_decay = {settings.weight_decay:g}"
        raise reject("learning_rate", "so small that training does not run away", got, remedy)
    return found


def _learned(data: LabelledSequences, settings: TrainingSettings, progress: Progress) -> LearnedProducts:
    rng = np.random.default_rng(settings.seed)
    order, held_out = rng.permutation(len(data)), n_held_out(len(data))
    watched, trained_on = data.subset(np.sort(order[:held_out])), data.subset(np.sort(order[held_out:]))
    start = initial_parameters(data.n_vocabulary, settings.d_model, rng, settings.dtype, settings.spread)
    model = CompiledOneLayer(distinct_tokens(trained_on), start, settings)
    total, batches = n_steps(len(data), settings), batches_of(len(trained_on), settings.batch)
    best: tuple[float, int, Any] = (np.inf, 0, None)
    step = 0
    while step < total:
        if step % len(batches) == 0:
            model.begin(rng.permutation(len(trained_on)))
        model.step(*batches[step % len(batches)], settings.learning_rate * (1.0 - step / total))
        step += 1
        progress.advance()
        if held_out and (step % BETWEEN_CHECKS == 0 or step == total):
            loss = _loss(watched, model)
            if loss < best[0]:
                best = (loss, step, _values(model))
            elif step - best[1] >= PATIENCE * BETWEEN_CHECKS:
                progress.advance(total - step)
                break
    if best[2] is None:
        best = (float("nan"), step, _values(model))
    a, b, norm_p = best[2]
    return LearnedProducts(a, b, norm_p, step, best[1], held_out, best[0])


def _loss(data: LabelledSequences, model: CompiledOneLayer) -> float:
    a, b = (np.asarray(one, dtype=np.float64) for one in model.products())
    return float(np.mean(np.logaddexp(0.0, -data.y * outputs(data.tokens, data.offsets, a, b))))


def _values(model: CompiledOneLayer) -> tuple[FloatArray, FloatArray, float]:
    a, b = (np.array(one, dtype=np.float64) for one in model.products())
    return a, b, float(np.linalg.norm(model.p.astype(np.float64)))
