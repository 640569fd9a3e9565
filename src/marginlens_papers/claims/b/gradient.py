"""B Lemmas 7 and 8: the gradients of the one-layer model in closed form, and the slope along a direction as a sum over pairs."""

from __future__ import annotations

from decimal import Decimal, localcontext
from importlib.util import find_spec
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings.models import Parameters, initial_parameters, loss_and_gradients
from marginlens.typing import Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.b.selection_slopes import directional_slope
from marginlens_papers.claims.drawing import level

SEED, D, STEP, DIGITS = 23, 5, 1e-30, 160
SCALES = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0)  # of E, p and v each


class B_L7(Claim):
    labels = ("B Lemma 7", "B Lemma 8", "B Eq. (1)", "B Eq. (2)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Compare closed forms with derivatives taken by other means, problem by problem."""
        paper = effort is Effort.PAPER
        n_problems = 12 if paper else 2
        autograd = paper and find_spec("torch") is not None
        progress.expect(n_problems * len(SCALES))
        by_step, by_graph, by_digits, by_pairs, largest_weight, size = [], [], [], [], [], []
        for k in range(n_problems):
            for scale in SCALES:
                data, model = _problem(np.random.default_rng([SEED, k]), scale)
                ours = loss_and_gradients(model, data)[1]
                by_step.append(_difference(ours, _complex_step(model, data)))
                if autograd:
                    by_graph.append(_difference(ours, _autograd(model, data)))
                exact = _p_in_decimals(model, data)
                by_digits.append(float(np.abs(ours.p - exact).max() / np.abs(exact).max()))
                size.append(float(np.abs(exact).max()))
                by_pairs.append(_lemma_8(model, ours, data, np.random.default_rng([SEED, k, 1])))
                largest_weight.append(_mean_largest_weight(model, data))
                progress.advance()
        numbers = {
            "largest_difference_to_other_derivatives": float(np.max(by_step + by_graph)),
            "largest_difference_of_p_to_160_digits": float(np.max(by_digits)),
            "largest_difference_of_lemma_8": float(np.max(by_pairs)),
            "problems": float(len(by_step)),
        }
        graph = f"and autograd's to {max(by_graph):.1e}" if autograd else "(autograd was not asked in this run)"
        measured = (
            f"In {len(by_step)} problems with a mean largest softmax weight from {min(largest_weight):.2f} to {max(largest_weight):.3f} "
            f"the gradients agree with those of complex steps to {max(by_step):.1e} {graph}; the part by p, as small as {min(size):.0e}, "
            f"agrees with 160 digits to {max(by_digits):.1e}, and the sum over pairs with it to {max(by_pairs):.1e}."
        )
        arrays = {
            "size of p": np.array(size),
            "complex step": np.array(by_step),
            "160 digits": np.array(by_digits),
            "Lemma 8": np.array(by_pairs),
        }
        if autograd:
            arrays["autograd"] = np.array(by_graph)
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Differences over how small the gradient by p has become."""
        fig, (ax,) = ml.plotting.figure(1, width=7.4, height=4.4)
        labels = {
            "complex step": "all parts, against complex steps",
            "autograd": "all parts, against autograd",
            "160 digits": "part by p, against 160 digits",
            "Lemma 8": "part by p, against Lemma 8",
        }
        size = finding.arrays["size of p"]
        for (name, label), colour, mark in zip(labels.items(), ml.plotting.ACCENTS, "osD^", strict=False):
            if name in finding.arrays:
                line = np.maximum(finding.arrays[name], 1e-18)
                ax.loglog(size, line, ls="none", marker=mark, ms=4, color=colour, alpha=0.8, label=label)
        level(ax, 1e-10, "bar", side="right")
        ax.set(xlabel="largest entry of the gradient by p", ylabel="relative difference", ylim=(3e-19, 3e-9))
        ax.set_title("Closed-form gradients against derivatives taken by other means")
        ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.8))
        return {"difference": fig}


def _problem(rng: np.random.Generator, scale: float) -> tuple[LabelledSequences, Parameters]:
    size = int(rng.integers(4, 12))
    lists = [rng.integers(size, size=rng.integers(1, 13)) for _ in range(12)]
    start = initial_parameters(size, D, rng, np.float64)
    data = LabelledSequences(lists, rng.choice([-1.0, 1.0], size=12), size)
    return data, Parameters(scale * start.E, scale * start.p, scale * start.v)


def _written_loss(E: Any, p: Any, v: Any, data: LabelledSequences) -> Any:
    """Eq. (2) with a row per position; analytic, so that it takes complex parameters."""
    total: Any = 0.0
    for i in range(len(data)):
        ids, y = data[i]
        logits = E[ids] @ p
        weights = np.exp(logits - logits.real.max())
        total = total + np.log1p(np.exp(-y * (weights @ (E[ids] @ v)) / weights.sum()))
    return total / len(data)


def _complex_step(model: Parameters, data: LabelledSequences) -> Parameters:
    parts = {name: np.array(var, dtype=np.complex128) for name, var in vars(model).items()}
    slopes = {name: np.empty(part.shape) for name, part in parts.items()}
    for name, part in parts.items():
        for place in np.ndindex(part.shape):
            part[place] += 1j * STEP
            slopes[name][place] = _written_loss(parts["E"], parts["p"], parts["v"], data).imag / STEP
            part[place] -= 1j * STEP
    return Parameters(**slopes)


def _autograd(model: Parameters, data: LabelledSequences) -> Parameters:
    import torch

    E, p, v = (torch.tensor(var, requires_grad=True) for var in vars(model).values())
    losses = []
    for i in range(len(data)):
        ids, y = data[i]
        X = E[torch.from_numpy(ids)]
        losses.append(-torch.nn.functional.logsigmoid(y * (torch.softmax(X @ p, dim=0) @ (X @ v))))
    torch.stack(losses).mean().backward()
    return Parameters(*(np.asarray(array.grad) for array in (E, p, v)))


def _difference(ours: Parameters, theirs: Parameters) -> float:
    pairs = list(zip(vars(ours).values(), vars(theirs).values(), strict=True))
    return float(
        np.max([np.abs(mine - other).max() for mine, other in pairs])
        / np.max([np.abs(other).max() for _, other in pairs])
    )


def _p_in_decimals(model: Parameters, data: LabelledSequences) -> np.ndarray:
    """(d,) the gradient by p from central differences of f in exact arithmetic but for the last of 160 digits."""
    with localcontext() as context:
        context.prec = DIGITS
        h = Decimal(10) ** (-DIGITS // 3)
        E, p, v = ([[Decimal(x) for x in row] for row in np.atleast_2d(var).tolist()] for var in vars(model).values())
        b = [_dot(row, v[0]) for row in E]
        outputs, slopes = _outputs(E, p[0], b, data), []
        for k in range(len(p[0])):
            ahead, behind = (_outputs(E, [*p[0][:k], p[0][k] + step, *p[0][k + 1 :]], b, data) for step in (h, -h))
            terms = zip(outputs, ahead, behind, data.y.tolist(), strict=True)
            total = sum(-int(y) * (up - down) / (2 * h) / (1 + (int(y) * f).exp()) for f, up, down, y in terms)
            slopes.append(float(total / len(data)))
    return np.array(slopes)


def _outputs(E: list[list[Decimal]], p: list[Decimal], b: list[Decimal], data: LabelledSequences) -> list[Decimal]:
    weight = [_dot(row, p).exp() for row in E]
    found = []
    for i in range(len(data)):
        ids = data[i][0].tolist()
        found.append(sum((weight[s] * b[s] for s in ids), Decimal(0)) / sum((weight[s] for s in ids), Decimal(0)))
    return found


def _dot(row: list[Decimal], other: list[Decimal]) -> Decimal:
    return sum((x * y for x, y in zip(row, other, strict=True)), Decimal(0))


def _lemma_8(model: Parameters, ours: Parameters, data: LabelledSequences, rng: np.random.Generator) -> float:
    """The largest disagreement of Lemma 8 with the gradient by p over four directions, relative to the terms of the product."""
    off = []
    for direction in rng.normal(size=(4, D)):
        slope = directional_slope(model, direction, data)
        off.append(abs(slope + float(direction @ ours.p)) / float(np.abs(direction) @ np.abs(ours.p)))
    return float(np.max(off))


def _mean_largest_weight(model: Parameters, data: LabelledSequences) -> float:
    logits = model.E @ model.p
    several = [data[i][0] for i in range(len(data)) if len(data[i][0]) > 1]
    return float(np.mean([1.0 / np.sum(np.exp(logits[ids] - logits[ids].max())) for ids in several]))
