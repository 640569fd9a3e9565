"""How fast a probe is: MiniLM on a thousand sentences beside the model alone, and two hundred with the max-margin part."""

from __future__ import annotations

import sys
import time
from itertools import cycle, islice
from typing import Any

from marginlens.probe import ProbeSettings, TextInputs, encode_texts, example_sentences, load_model, probe_model
from marginlens.runtime.progress import Progress, ProgressCallback

SENTENCES, SEPARATED = 1000, 200  # without and with the max-margin part
MODEL = "minilm"


def bench_probe(progress: ProgressCallback | None = None) -> list[dict[str, Any]]:
    """Probe all heads of the packaged all-MiniLM-L6-v2; without the package it cannot run.

    The sentences are the project's own, five times each for the thousand. The model alone runs on the same batches in the same process,
    after one batch that is not counted.

    Returns:
        One row per run: its seconds and the largest memory that the process has held so far; a summary with the ratio.
    """
    watch = Progress(progress)
    watch.expect(3)
    loaded = load_model(MODEL)
    many = encode_texts(_sentences(SENTENCES), loaded.tokenizer, loaded.model.config)
    few = encode_texts(_sentences(SEPARATED), loaded.tokenizer, loaded.model.config)
    _run_alone(loaded.model, encode_texts(_sentences(8), loaded.tokenizer, loaded.model.config))
    runs = {
        "the model alone": lambda: _run_alone(loaded.model, many),
        "probe": lambda: probe_model(loaded, many, ProbeSettings()),
        "probe with the max-margin part": lambda: probe_model(loaded, few, ProbeSettings(max_margin=True)),
    }
    rows: list[dict[str, Any]] = []
    for name, run in runs.items():
        began = time.perf_counter()
        run()
        seconds = time.perf_counter() - began
        count = len(few) if "max-margin" in name else len(many)
        rows.append({"run": name, "sentences": count, "seconds": seconds, "peak_gigabytes": _peak()})
        watch.advance()
    alone, plain = rows[0]["seconds"], rows[1]["seconds"]
    return [*rows, {"run": "summary", "over_the_model_alone": plain / alone}]


def _sentences(count: int) -> list[str]:
    """The project's sentences, again from the first where they are not enough: the work does not depend on what they say."""
    return list(islice(cycle(example_sentences()), count))


def _run_alone(model: Any, inputs: TextInputs) -> None:
    import torch

    with torch.no_grad():
        for batch in inputs.batches():
            model(**{name: torch.from_numpy(values) for name, values in batch.inputs.items()})


def _peak() -> float | None:
    """The largest resident memory of this process so far, in 10⁹ bytes; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
