"""Which optimizer made a head: small transformers are trained by Adam, Muon and SGD, and a rule tells them apart by the heads' weights.

`python -m benchmarks.optimizers` trains them (a minute on a GPU) and writes what was measured of every head to the package's results.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.budgets import text_corpus
from benchmarks.collapse import N_TOKENS, N_WORDS, task_batch
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin import MaxMarginSettings, sample_queries
from marginlens.probe.heads.optimizer import MIN_PROBABILITY, margin_shares, weight_features
from marginlens.runtime.versions import versions
from marginlens.typing import FloatArray, IntArray

N_STEPS, WARM_UP, N_INPUTS = 1500, 50, 16
N_LAYERS, N_HEADS = 2, 4
TASKS = ("first", "previous", "copy", "majority", "own", "third", "largest", "lookup", "sum", "text")
N_QUERIES, N_VISIBLE = 8, 6  # of the problems whose margins are solved for, and the tokens that each query sees
SMALL_START = 0.16  # as GPT-2's, whose entries are 0.02
PLAN = {  # optimizer -> rate, and weight decay or, of SGD, momentum
    "adam": ((1e-3, 0.0), (5e-3, 0.0), (2e-3, 0.1)),
    "muon": ((3e-3, 0.0), (2e-2, 0.0), (1e-2, 0.1)),
    "sgd": ((0.03, 0.9), (0.1, 0.9), (0.3, 0.0)),
}
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # of Muon
_N_ITERATIONS = 5


@dataclass(frozen=True)
class Group:
    """Models of one width, one way of positions and one size of the first weights, which train side by side.

    There is one for each task, rate and seed.
    """

    optimizer: str
    width: int
    is_rotary: bool
    start_size: float  # of the first weights' entries, times the root of the width
    seeds: Sequence[int]

    @property
    def runs(self) -> list[tuple[str, float, float, int]]:
        """Task, rate, decay or momentum, and seed of every run."""
        return [
            (task, rate, other, seed) for task in TASKS for rate, other in PLAN[self.optimizer] for seed in self.seeds
        ]


def groups(seeds: Sequence[int] = (0, 1)) -> list[Group]:
    """All models: those of two widths, with learned and with rotary positions, from weights as small as GPT-2's and from usual ones."""
    return [
        Group(optimizer, width, is_rotary, start_size, seeds)
        for optimizer in PLAN
        for width, is_rotary, start_size in ((64, False, SMALL_START), (64, True, 1.0), (96, False, 1.0))
    ]


def trained(group: Group, device: str = "cpu", n_steps: int = N_STEPS) -> tuple[dict[str, Any], Any]:
    """The weights of all runs of a group, by name, stacked along their first axis, and the mean of each run's last losses."""
    import torch

    runs = group.runs
    weights = _first_weights(group, len(runs), device)
    update = _updates(group, weights, torch.tensor([run[1] for run in runs], device=device))
    draws = torch.Generator().manual_seed(1)
    corpus = torch.from_numpy(text_corpus().astype("int64"))
    losses = []
    for step in range(n_steps):
        # the inputs of a task are the same for all of its runs, whose rates and first weights differ
        batches = {task: _batch(task, draws, corpus) for task in dict.fromkeys(run[0] for run in runs)}
        ids = torch.stack([batches[run[0]][0] for run in runs]).to(device)
        labels = torch.stack([batches[run[0]][1] for run in runs]).to(device)
        logits = _logits(weights, ids, group)
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 2), labels.flatten(), ignore_index=-100, reduction="none"
        ).view(labels.shape)
        loss = each.sum(dim=(1, 2)) / (labels != -100).sum(dim=(1, 2))
        gradients = torch.autograd.grad(loss.sum(), list(weights.values()))
        update(gradients, min(1.0, (step + 1) / WARM_UP), step + 1)
        losses.append(loss.detach())
    last = torch.stack(losses[-50:]).mean(dim=0)
    return {name: weight.detach() for name, weight in weights.items()}, last


def _first_weights(group: Group, n_runs: int, device: str) -> dict[str, Any]:
    """Random weights: those of one seed are the same for all optimizers, tasks and rates."""
    import torch

    d, n_words = group.width, 256
    shapes = {"embedding": (n_words, d), "head": (d, n_words)}
    if not group.is_rotary:
        shapes["positions"] = (N_TOKENS, d)
    for layer in range(N_LAYERS):
        shapes |= {f"{layer}.{name}": (d, d) for name in ("W_Q", "W_K", "W_V", "W_O")}
        shapes |= {f"{layer}.up": (d, 2 * d), f"{layer}.down": (2 * d, d)}
    weights = {}
    by_seed = {seed: torch.Generator().manual_seed(seed) for seed in group.seeds}
    for name, shape in shapes.items():
        of_seed = {seed: torch.randn(shape, generator=draws) for seed, draws in by_seed.items()}
        stacked = torch.stack([of_seed[run[3]] for run in group.runs])
        weights[name] = (stacked * group.start_size / math.sqrt(d)).to(device).requires_grad_()
    assert all(len(weight) == n_runs for weight in weights.values())
    return weights


def _logits(weights: dict[str, Any], ids: Any, group: Group) -> Any:
    """(runs, inputs, tokens, words): blocks of attention and two layers, each behind a norm without weights."""
    import torch

    n_runs, n_inputs, n_tokens = ids.shape
    d, d_head = group.width, group.width // N_HEADS

    def normed(x: Any) -> Any:
        return torch.nn.functional.rms_norm(x, (d,))

    def heads(x: Any) -> Any:  # (runs * inputs, heads, tokens, d_head)
        return x.view(n_runs * n_inputs, n_tokens, N_HEADS, d_head).transpose(1, 2)

    rows = torch.arange(n_runs, device=ids.device)[:, None]
    x = weights["embedding"][rows, ids.flatten(1)]  # (runs, inputs * tokens, d)
    if not group.is_rotary:
        x = x + weights["positions"].repeat(1, n_inputs, 1)
    for layer in range(N_LAYERS):
        z = normed(x)
        queries, keys, values = (heads(z @ weights[f"{layer}.{name}"]) for name in ("W_Q", "W_K", "W_V"))
        if group.is_rotary:
            queries, keys = _rotated(queries), _rotated(keys)
        mixed = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(n_runs, n_inputs * n_tokens, d) @ weights[f"{layer}.W_O"]
        hidden = torch.nn.functional.gelu(normed(x) @ weights[f"{layer}.up"])
        x = x + hidden @ weights[f"{layer}.down"]
    return (normed(x) @ weights["head"]).view(n_runs, n_inputs, n_tokens, -1)


def _rotated(x: Any) -> Any:
    """Rotary positions (…, tokens, d_head)."""
    import torch

    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * 100.0 ** (
        -torch.arange(half, device=x.device) / half
    )
    first, second = x[..., :half], x[..., half:]
    return torch.cat(
        (first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()), dim=-1
    )


def _updates(group: Group, weights: dict[str, Any], rates: Any) -> Any:
    """A function that takes a step of every run with its own rate, behind gradients clipped at length 1.

    torch's optimizers have one rate for all, so they are written out. Muon has Adam beside it, at 0.3 of its rate, for all but the blocks.
    """
    import torch

    other = torch.tensor([run[2] for run in group.runs], device=rates.device)[:, None, None]
    state = {name: (torch.zeros_like(weight), torch.zeros_like(weight)) for name, weight in weights.items()}

    def adam(name: str, gradient: Any, step: int) -> Any:
        first, second = state[name]
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.05)
        return (first / (1.0 - 0.9**step)) / ((second / (1.0 - 0.95**step)).sqrt() + 1e-8)

    @torch.no_grad()
    def update(gradients: Sequence[Any], warm: float, step: int) -> None:
        rate = warm * rates[:, None, None]
        squares = [gradient.square().sum(dim=(1, 2)) for gradient in gradients]
        clipped = (1.0 / torch.stack(squares).sum(dim=0).sqrt().clamp(min=1.0))[:, None, None]
        gradients = [clipped * gradient for gradient in gradients]
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            if group.optimizer == "sgd":
                velocity = state[name][0].mul_(other).add_(gradient)
                weight.sub_(rate * velocity)
            elif group.optimizer == "adam":
                weight.mul_(1.0 - rate * other).sub_(rate * adam(name, gradient, step))
            elif name[0].isdecimal():
                momentum = state[name][0].lerp_(gradient, 0.05)
                weight.mul_(1.0 - rate * other).sub_(rate * _orthogonal(gradient.lerp(momentum, 0.95)))
            else:
                weight.mul_(1.0 - rate * other).sub_(0.3 * rate * adam(name, gradient, step))

    return update


def _orthogonal(gradient: Any) -> Any:
    """Muon's five steps of Newton and Schulz towards the nearest matrix with orthonormal rows or columns, of all runs at once."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = gradient.shape[-2] > gradient.shape[-1]
    x = gradient.transpose(-1, -2) if is_tall else gradient
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-30)
    for _ in range(_N_ITERATIONS):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-1, -2) if is_tall else x


def _batch(task: str, draws: Any, corpus: Any) -> tuple[Any, Any]:
    """Tokens and what is to be told at each of them, -100 where nothing is.

    Five tasks are those of `benchmarks.collapse`. third: the token three before. largest: the largest so far. lookup: after pairs of a
    letter and its answer, the answer to a letter that comes again. sum: of the last two tokens, modulo their number. text: the next byte
    of the project's guides.
    """
    import torch

    if task in TASKS[:5]:
        return task_batch(task, draws)
    if task == "text":
        starts = torch.randint(0, len(corpus) - N_TOKENS - 1, (N_INPUTS, 1), generator=draws)
        rows = corpus[starts + torch.arange(N_TOKENS + 1)]
        return rows[:, :-1], rows[:, 1:]
    ids = torch.randint(1, N_WORDS, (N_INPUTS, N_TOKENS), generator=draws)
    labels = torch.full_like(ids, -100)
    if task == "third":
        labels[:, 3:] = ids[:, :-3]
    elif task == "largest":
        labels[:] = ids.cummax(dim=1).values
    elif task == "sum":
        labels[:, 1:] = (ids[:, 1:] + ids[:, :-1]) % N_WORDS
    else:
        n_pairs = N_WORDS // 2 - 1
        letters = torch.rand((N_INPUTS, n_pairs), generator=draws).argsort(dim=1) + 1
        answers = torch.randint(n_pairs + 1, N_WORDS, (N_INPUTS, n_pairs), generator=draws)
        ids[:, 0 : 2 * n_pairs : 2], ids[:, 1 : 2 * n_pairs : 2] = letters, answers
        again = torch.randint(0, n_pairs, (N_INPUTS, N_TOKENS - 2 * n_pairs), generator=draws)
        ids[:, 2 * n_pairs :] = letters.gather(1, again)
        labels[:, 2 * n_pairs :] = answers.gather(1, again)
    return ids, labels


# ---- what the weights show


def layer_rows(group: Group, weights: dict[str, Any], losses: Any) -> list[dict[str, Any]]:
    """One row for each layer of each run: what was trained and how, and the features of its weights."""
    rows = []
    for k, (task, rate, other, seed) in enumerate(group.runs):
        for layer in range(N_LAYERS):
            factors = [weights[f"{layer}.{name}"][k].double().cpu().numpy() for name in ("W_Q", "W_K")]
            features = np.mean([weight_features(factor) for factor in factors], axis=0)
            rows.append(
                {
                    "optimizer": group.optimizer,
                    "width": group.width,
                    "rotary": group.is_rotary,
                    "start": group.start_size,
                }
                | {"task": task, "rate": rate, "other": other, "seed": seed, "layer": layer}
                | {"loss": round(float(losses[k]), 3), "features": [round(float(value), 4) for value in features]}
            )
    return rows


def head_problems(group: Group, weights: dict[str, Any]) -> list[tuple[dict[str, Any], list[FloatArray], KeyQueryMap]]:
    """For each run of models with learned positions, the tokens that the first head of its first layer reads, and this head."""
    import torch

    corpus, problems = torch.from_numpy(text_corpus().astype("int64")), []
    d_head = group.width // N_HEADS
    for k, (task, rate, _, seed) in enumerate(group.runs):
        ids, _ = _batch(task, torch.Generator().manual_seed(5), corpus)
        tokens = (
            weights["embedding"][k].cpu()[ids[:N_QUERIES, -N_VISIBLE:]] + weights["positions"][k].cpu()[-N_VISIBLE:]
        )
        inputs = torch.nn.functional.rms_norm(tokens, (group.width,)).double().numpy()
        W_Q, W_K = (weights[f"0.{name}"][k, :, :d_head].double().cpu().numpy() for name in ("W_Q", "W_K"))
        head = KeyQueryMap(W_K, W_Q, np.zeros(d_head), 1.0 / math.sqrt(d_head))
        problems.append(({"optimizer": group.optimizer, "task": task, "rate": rate, "seed": seed}, list(inputs), head))
    return problems


def shares_row(problem: tuple[dict[str, Any], list[FloatArray], KeyQueryMap]) -> dict[str, Any]:
    """The head's shares of the margins in three norms, and those of a random head beside it."""
    facts, inputs, head = problem
    sample = sample_queries(inputs, None, MaxMarginSettings(queries_per_input=1))
    rng = np.random.default_rng(facts["seed"])
    W_Q, W_K = rng.standard_normal((2, *head.W_K.shape))
    random = KeyQueryMap(W_Q, W_K, head.b_Q, head.scale)
    for name, one in (("own", head), ("random", random)):
        facts[name] = [None if math.isnan(share) else round(share, 6) for share in margin_shares(sample, one)]
    return facts


# ---- the rule


def fitted_rule(features: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
    """Linear discriminants (n_features, 2) and the centres (3, 2) of the classes in their plane, where each class has spread 1."""
    means = np.stack([features[labels == k].mean(axis=0) for k in range(3)])
    inside = features - means[labels]
    values, axes = np.linalg.eigh(inside.T @ inside / len(features))
    whitening = axes / np.sqrt(values + 1e-4)
    _, _, rotation = np.linalg.svd((means - means.mean(axis=0)) @ whitening)
    discriminants = whitening @ rotation[:2].T
    return discriminants, means @ discriminants


def unseen_tasks(features: FloatArray, labels: IntArray, tasks: Any) -> FloatArray:
    """(n, 3) the probabilities that a rule fitted to all other tasks gives."""
    found = np.empty((len(labels), 3))
    for task in np.unique(tasks):
        is_held_out = tasks == task
        discriminants, centres = fitted_rule(features[~is_held_out], labels[~is_held_out])
        apart = np.sum(np.square((features[is_held_out] @ discriminants)[:, None] - centres), axis=2)
        odds = np.exp(-0.5 * (apart - apart.min(axis=1, keepdims=True)))
        found[is_held_out] = odds / odds.sum(axis=1, keepdims=True)
    return found


def table(layers: Sequence[dict[str, Any]], heads: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How often the rule is right on tasks that it was not fitted to: by weights, of all models or from small ones; by margins."""
    names = list(PLAN)
    kinds = {
        "weights": list(layers),
        "weights, from small first weights": [row for row in layers if row["start"] == SMALL_START],
        "margins, from small first weights": list(heads),
    }
    rows = []
    for kind, of in kinds.items():
        labels = np.array([names.index(row["optimizer"]) for row in of])
        features = np.array(
            [row["features"] if "features" in row else np.log(np.maximum(row["own"], 1e-6)) for row in of]
        )
        odds = unseen_tasks(features, labels, np.array([row["task"] for row in of]))
        right, is_clear = odds.argmax(axis=1) == labels, odds.max(axis=1) >= MIN_PROBABILITY
        each = [labels == k for k in range(3)]
        rows.append(
            {
                "by": kind,
                "cases": len(of),
                "balanced_accuracy": float(np.mean([right[one].mean() for one in each])),
                "decided": float(is_clear.mean()),
                "balanced_accuracy_decided": float(np.mean([right[one & is_clear].mean() for one in each])),
                **{f"{name}_right": float(right[one & is_clear].mean()) for name, one in zip(names, each, strict=True)},
            }
        )
    for name in names:
        own, random = (
            np.nanmedian(np.array([row[of] for row in heads if row["optimizer"] == name], dtype=float), axis=0)
            for of in ("own", "random")
        )
        shares = dict(zip(("linf", "spectral", "frobenius"), (own / random).tolist(), strict=True))
        rows.append({"by": f"{name}: share of margins over a random head's", **shares})
    return rows


def write_archive(
    layers: Sequence[dict[str, Any]], heads: Sequence[dict[str, Any]], device: str, out: Path
) -> list[dict[str, Any]]:
    """Write the table, and what was measured of every layer and head, a line each; the table comes back."""
    rows = table(layers, heads)
    facts: dict[str, Any] = {"command": f"python -m benchmarks.optimizers --device {device}", "versions": versions()}
    facts |= {"settings": {"n_steps": N_STEPS, "plan": PLAN}, "rows": rows}
    lines = [",\n".join(json.dumps(row) for row in part) for part in (layers, heads)]
    text = f'{json.dumps(facts, indent=1)[:-2]},\n "layers": [\n{lines[0]}\n],\n "heads": [\n{lines[1]}\n]}}\n'
    out.write_text(text, encoding="utf-8")
    return rows


def main() -> None:
    """Train, measure, and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="the file; optimizers-bench.json of the package's results by default")
    options = parser.parse_args()
    if options.out is None:
        from marginlens_papers.archive import results_folder

        options.out = results_folder() / "optimizers-bench.json"
    layers, problems = [], []
    for group in groups():
        weights, losses = trained(group, options.device)
        layers += layer_rows(group, weights, losses)
        problems += head_problems(group, weights) if group.start_size == SMALL_START else []
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        heads = list(pool.map(shares_row, problems, chunksize=4))
    rows = write_archive(layers, heads, options.device, options.out)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
