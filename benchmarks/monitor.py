"""What watching costs: a small GPT-2 is trained on a CPU or a GPU, and `AttentionMonitor` reads some of its steps."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from marginlens.errors import InputError
from marginlens.probe.monitor.callback import DEFAULT_EVERY, AttentionMonitor
from marginlens.runtime.progress import Progress, ProgressCallback

MAX_SHARE = 0.01  # of training, that measuring may take at the default interval
N_WARM = 3  # steps of each kind that are not counted


@dataclass(frozen=True)
class Run:
    """A training run: sizes of the model and of its batches, and how many steps and measurements are timed."""

    n_layers: int
    n_heads: int
    d_model: int
    n_words: int
    n_inputs: int
    n_tokens: int
    n_steps: int
    n_measurements: int


RUNS = {  # a GPT-2 that a CPU can train, and GPT-2 small (124 million weights) in mixed precision
    "cpu": Run(
        n_layers=4, n_heads=4, d_model=128, n_words=4096, n_inputs=8, n_tokens=128, n_steps=20, n_measurements=6
    ),
    "cuda": Run(
        n_layers=12, n_heads=12, d_model=768, n_words=50257, n_inputs=8, n_tokens=512, n_steps=100, n_measurements=12
    ),
}


def bench_monitor(progress: ProgressCallback | None = None, device: str = "cpu") -> list[dict[str, Any]]:
    """Train on random tokens, and measure one of a few steps.

    Plain and measured steps alternate in one process, so that a busy machine slows both; medians are compared. On a CPU it is time of the
    processor, on a GPU of the clock, with the GPU waited for. The file is written at every measurement, as in a run.

    Args:
        device: "cpu", "cuda" or "cuda:1".
    Returns:
        One row for a step and one for a step that is measured, and a summary with the share of training that measuring takes at the
        default interval.
    """
    import torch

    kind = torch.device(device).type
    if kind not in RUNS or (kind == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"The benchmark of the monitor runs on cpu or cuda; {device!r} is not at hand.")
    run = RUNS[kind]
    watch = Progress(progress)
    watch.expect(run.n_steps + run.n_measurements)
    step = _Training(run, device)
    clock = _clock(kind)
    seconds: dict[str, list[float]] = {"training step": [], "measured step": []}
    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / "run.parquet" if find_spec("pyarrow") is not None else None
        per_measurement = max(1, run.n_steps // run.n_measurements)
        monitor = AttentionMonitor(path=path, every=per_measurement + 1)
        monitor.attach(step.model)

        def watched() -> None:
            step()
            monitor.step(step.model)

        for k in range((N_WARM + run.n_measurements) * (per_measurement + 1)):
            is_measured = k % (per_measurement + 1) == 0
            monitor._finer_until = 0  # every step of a short run would be measured, since it has just begun
            took = clock(watched)
            if k >= N_WARM * (per_measurement + 1):
                seconds["measured step" if is_measured else "training step"].append(took)
                watch.advance()
        monitor.finish()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rows: list[dict[str, Any]] = [
        {"run": name, "device": device, "count": len(values), "seconds": medians[name]}
        for name, values in seconds.items()
    ]
    extra = max(0.0, medians["measured step"] - medians["training step"])
    share = extra / (DEFAULT_EVERY * medians["training step"])
    smallest = int(share / MAX_SHARE * DEFAULT_EVERY) + 1
    return [
        *rows,
        {
            "run": "summary",
            "device": device,
            "every": DEFAULT_EVERY,
            "share_of_training": share,
            "smallest_interval": smallest,
            "note": f"measuring takes {share:.2%} of training at the default interval of {DEFAULT_EVERY} steps; "
            f"{MAX_SHARE:.0%} would be an interval of {smallest}",
        },
    ]


class _Training:
    """A model, an optimizer, and a call that takes one step."""

    def __init__(self, run: Run, device: str) -> None:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(
            n_layer=run.n_layers,
            n_head=run.n_heads,
            n_embd=run.d_model,
            vocab_size=run.n_words,
            n_positions=max(run.n_tokens, 128),
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="sdpa",
            loss_type="ForCausalLM",
        )
        self.model = GPT2LMHeadModel(config).to(device).train()
        self.ids = torch.randint(0, run.n_words, (run.n_inputs, run.n_tokens), device=device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        is_gpu = torch.device(device).type == "cuda"
        self._precision: Callable[[], Any] = lambda: (
            torch.autocast("cuda", dtype=torch.bfloat16) if is_gpu else nullcontext()
        )

    def __call__(self) -> None:
        with self._precision():
            loss = self.model(input_ids=self.ids, labels=self.ids).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def _clock(kind: str) -> Callable[[Callable[[], Any]], float]:
    """What times a call: the processor's time, or the clock's with the GPU waited for before and after."""
    import torch

    def on_cpu(call: Callable[[], Any]) -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    def on_gpu(call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return on_gpu if kind == "cuda" else on_cpu


@contextmanager
def _quiet() -> Iterator[None]:
    """Without alarms on the terminal: random tokens are no training."""
    import logging

    log = logging.getLogger("marginlens")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    print(json.dumps(bench_monitor(device=parser.parse_args().device), indent=2))
