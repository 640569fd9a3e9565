"""How fast embeddings train: a step on two numbers per token beside nn.Embedding with autograd, and beside AdamW alone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings.models import (
    Parameters,
    distinct_tokens,
    initial_parameters,
)
from marginlens.errors import missing_extra
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens_papers.embeddings.cpu_model import CompiledOneLayer
from marginlens_papers.embeddings.settings import ADAMW_BETAS, ADAMW_EPSILON, TrainingSettings

WIDTH, BATCH, TOKENS, VOCABULARY = 2048, 128, 155, 7336
STEPS = 6  # of each method, which take turns; the fastest counts


def bench_embeddings(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time one training step of the one-layer model at the paper's size: d = 2048, 128 sequences of 155 tokens, 7,336 types.

    Tokens are drawn with the frequencies of text, the s-th in proportion to 1/s. All sides take the same steps in this process, by turns,
    after one that is not counted. AdamW alone is torch's fastest form of it (fused), on E with a gradient that is already there.

    Returns:
        One row per method, and a summary row with the two ratios that matter and how far the two trained models are apart.
    """
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "The autograd baseline") from problem
    watch = Progress(progress)
    watch.expect(STEPS + 1)
    rng = np.random.default_rng(seed)
    chances = 1.0 / np.arange(1, VOCABULARY + 1)
    tokens = rng.choice(VOCABULARY, size=(BATCH, TOKENS), p=chances / chances.sum())
    data = LabelledSequences(tokens, rng.choice([-1.0, 1.0], size=BATCH), VOCABULARY)
    start = initial_parameters(VOCABULARY, WIDTH, rng, np.float32)
    settings = TrainingSettings(d_model=WIDTH, batch=BATCH)
    ours = CompiledOneLayer(distinct_tokens(data), Parameters(start.E.copy(), start.p.copy(), start.v.copy()), settings)
    ours.begin(np.arange(BATCH))
    plain = PlainOneLayer(tokens, data.y, start, settings)
    lone = torch.nn.Parameter(torch.from_numpy(start.E.copy()))
    lone.grad = torch.randn(lone.shape, generator=torch.Generator().manual_seed(seed)) / VOCABULARY
    alone = torch.optim.AdamW(
        [lone], settings.learning_rate, ADAMW_BETAS, ADAMW_EPSILON, settings.weight_decay, fused=True
    )
    methods = {
        f"marginlens, {n_threads()} threads": lambda: ours.step(0, BATCH, settings.learning_rate),
        f"nn.Embedding and autograd, {torch.get_num_threads()} threads": plain.step,
        "AdamW on E alone, fused": alone.step,
    }
    seconds = dict.fromkeys(methods, float("inf"))
    for k in range(STEPS + 1):
        for name, step in methods.items():
            began = time.perf_counter()
            step()
            if k:
                seconds[name] = min(seconds[name], time.perf_counter() - began)
        watch.advance()
    mine, theirs, pass_alone = seconds.values()
    sizes = {"d": WIDTH, "batch": BATCH, "tokens": TOKENS, "types": VOCABULARY}
    rows: list[dict[str, Any]] = [{**sizes, "method": name, "seconds": took} for name, took in seconds.items()]
    summary = {
        "method": "summary",
        "times_faster_than_autograd": theirs / mine,
        "over_adamw_alone": mine / pass_alone,
        "largest_difference": float(np.max(np.abs(ours.a - plain.products()))),
    }
    return [*rows, {**sizes, **summary}]


class PlainOneLayer:
    """The one-layer model as it is usually written: an embedding layer, autograd and torch.optim.AdamW as it comes."""

    def __init__(self, tokens: Any, y: Any, start: Parameters, settings: TrainingSettings) -> None:
        import torch

        self.tokens, self.y = torch.from_numpy(tokens), torch.from_numpy(y).float()
        self.embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(start.E.copy()), freeze=False)
        self.p, self.v = (torch.nn.Parameter(torch.from_numpy(one.copy())) for one in (start.p, start.v))
        trained = [self.embedding.weight, self.p, self.v]
        self.optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)

    def step(self) -> None:
        """One step on all sequences."""
        import torch

        self.optimizer.zero_grad()
        X = self.embedding(self.tokens)  # (n_samples, n_tokens, d_model)
        attention = torch.softmax(X @ self.p, dim=-1)
        outputs = (attention[:, None, :] @ X)[:, 0] @ self.v
        torch.nn.functional.softplus(-self.y * outputs).mean().backward()
        self.optimizer.step()

    def products(self) -> Any:
        """(n_vocabulary,) E p."""
        return (self.embedding.weight @ self.p).detach().numpy()
