"""Safe budgets of every head: how many keys it needs, and how many bits for them, certified for each query and conformal for new inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import reject, whole_number
from marginlens.probe.heads.rounding import EXACT_KEYS, certify_rounding, rotation_matrix, round_keys
from marginlens.probe.models.adapters.base import LayerReading
from marginlens.probe.models.reading import read_layers
from marginlens.probe.result import JSON_DIGITS
from marginlens.probe.run import readable
from marginlens.result import Described, jsonable
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.typing import FloatArray, IntArray

_MAX_SHOWN_BITS = 8  # of a table
_COUNTS = ("certified", "robust", "resolved", "changed", "decided")


@dataclass(frozen=True)
class BudgetSettings:
    """Choices of budgets.

    Args:
        tolerance: of total variation, by which the attention of a query may move: above 0 and below 1.
        bits: of each coordinate of a key, each at least 2.
        confidence: that a new input stays within the budgets, below 1.
        seed: of the rotation that centred keys are rounded behind, beside such that are rounded without one.
    """

    tolerance: float = 0.01
    bits: Sequence[int] = (3, 4, 6, 8, 10, 12)
    confidence: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tolerance", "confidence"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise reject(name, "a number above 0 and below 1", getattr(self, name))
        if not len(self.bits) or list(self.bits) != sorted(set(self.bits)):
            raise reject("bits", "whole numbers that increase", list(self.bits))
        for bits in self.bits:
            whole_number(bits, "bits", at_least=2)


@dataclass(frozen=True, repr=False, eq=False)
class KeyBudgets(Described):
    """What every head needs; arrays are (n_layers, n_heads), behind an axis of bits where there are several, nan where a head is not there.

    Conformal numbers hold for a new input that is exchangeable with the inputs: drawn as they were. With the probability `confidence`
    at least, over the draw of all of them, every query of the new input stays within the number of a head; infinite where the inputs
    are too few to say so. They speak of one head at a time, with what enters it unchanged, not of a model with all heads changed at once.

    Attributes:
        keys: conformal, the keys of largest attention that a query needs for a total variation of at most `settings.tolerance`.
        mean_keys: the mean over queries of that number. n_keys: the most keys that any query sees.
        certified, robust, resolved, changed: (n_bits, n_layers, n_heads) shares of all selections, as `RoundingCertificate` defines them,
            of the better of centred keys as they are and rotated; `rotated` is whether these are the rotated ones, which every second
            input decides.
        uncertified: (n_bits, …) conformal, on the other inputs, the share of an input's selections that are not certified.
        variation: (n_bits, …) conformal, on the other inputs, the bound on the total variation of a query.
        n_decisions: selections that each of the heads was asked for, the most of any head.
    """

    model: str
    settings: BudgetSettings
    layer_names: tuple[str, ...]
    n_inputs: int
    n_decisions: int
    n_keys: int
    keys: FloatArray
    mean_keys: FloatArray
    certified: FloatArray
    robust: FloatArray
    resolved: FloatArray
    changed: FloatArray
    rotated: Any
    uncertified: FloatArray
    variation: FloatArray
    quantities = "{model}, {n_inputs} inputs, {n_decisions} selections a head"

    @property
    def bits(self) -> FloatArray:
        """(n_layers, n_heads) the fewest bits at which no query of a new input moves by more than the tolerance; infinite where none is."""
        fits = self.variation <= self.settings.tolerance
        found = np.where(fits.any(axis=0), np.asarray(self.settings.bits, dtype=float)[fits.argmax(axis=0)], np.inf)
        return np.where(np.isnan(self.mean_keys), np.nan, found)

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer: mean and safe number of keys, the share of selections certified at each of few bits, and safe bits."""
        rows = []
        for layer, name in enumerate(self.layer_names):
            heads = np.isfinite(self.mean_keys[layer])
            certified = {
                f"{bits} bits": f"{self.certified[k, layer, heads].mean():.1%}"
                for k, bits in enumerate(self.settings.bits)
                if bits <= _MAX_SHOWN_BITS
            }
            needed, keys = self.bits[layer, heads], self.keys[layer, heads].max()
            ends = (
                str(int(end)) if np.isfinite(end) else f"> {self.settings.bits[-1]}"
                for end in (needed.min(), needed.max())
            )
            rows.append(
                {
                    "layer": name,
                    "keys": float(self.mean_keys[layer, heads].mean()),
                    "safe keys": int(keys) if np.isfinite(keys) else "all",
                    **certified,
                    "safe bits": " to ".join(dict.fromkeys(ends)),
                }
            )
        return rows

    def sentences(self) -> list[str]:
        """What the numbers say."""
        settings, known = self.settings, np.isfinite(self.mean_keys)
        found = [
            f"{self.n_inputs} inputs, {self.n_decisions} selections a head; a query sees at most {self.n_keys} keys. A query needs so many "
            f"keys, on average, to move by at most {settings.tolerance:g} in total variation; safe keys are the most that a head of the "
            f"layer needs for all queries of a new input drawn like these, with probability {settings.confidence:.0%} or more, and safe "
            "bits likewise, from the fewest to the most of its heads. Percentages are selections that are certified not to change."
        ]
        at = next((k for k, bits in enumerate(settings.bits) if bits >= 4), 0)
        found.append(
            f"At {settings.bits[at]} bits {self.certified[at][known].mean():.1%} of all selections are certified, "
            f"{self.robust[at][known].mean():.1%} against any error of that length, and {self.changed[at][known].mean():.2%} change; of "
            f"{self.resolved[at][known].mean():.1%} it is known what exact attention selects once {EXACT_KEYS} exact keys are read."
        )
        if np.isinf(self.variation[:, known]).all():
            least = 2 * (math.ceil(1.0 / (1.0 - settings.confidence)) - 1)
            found.append(
                f"{self.n_inputs} inputs are too few for a confidence of {settings.confidence:.0%}: give {least} or more."
            )
        found.append("Budgets are of one head at a time, with what enters it unchanged.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain values; None for what is not there or infinite."""
        names = ("keys", "mean_keys", *_COUNTS[:4], "rotated", "uncertified", "variation", "bits")
        fields = ("model", "settings", "layer_names", "n_inputs", "n_decisions", "n_keys")
        return dict(jsonable({name: getattr(self, name) for name in (*fields, *names)}, JSON_DIGITS))


def conformal_bound(scores: FloatArray, confidence: float) -> FloatArray:
    """What a new score, exchangeable with those (n, …), does not exceed with this probability: the ceil((n + 1) c)-th smallest."""
    rank = math.ceil((len(scores) + 1) * confidence)
    if rank > len(scores):
        return np.full(scores.shape[1:], np.inf)
    return np.asarray(np.sort(scores, axis=0)[rank - 1])


def key_budgets(
    model: Any, inputs: Any, settings: BudgetSettings | None = None, *, progress: ProgressCallback | None = None
) -> KeyBudgets:
    """How many keys, and how many bits of them, every head of a model needs on a set of inputs and on new ones like these.

    Args:
        model, inputs: as in `probe_model`; the model must be one whose queries and keys are read.
        progress: called with the inputs done and all inputs.
    Returns:
        To check it: `certify_rounding` gives the certificates of a layer's queries and keys, `attention_statistics` the keys needed.
    """
    import torch

    options = settings or BudgetSettings()
    report = as_progress(progress) or (lambda done, total: None)
    with readable(model, inputs) as found, torch.no_grad():
        adapter, data = found.adapter, found.inputs
        if not adapter.reads_weights:
            raise reject(
                "model",
                "one whose queries and keys are read",
                f"{found.loaded.name!r}, which shows its attention alone",
            )
        sums = _Sums((adapter.n_layers, adapter.n_heads), len(data), options)
        done = 0
        report(done, len(data))
        for batch in data.batches():
            for reading in read_layers(adapter, batch.inputs):
                sums.add(reading, batch.index)
            done += len(batch.index)
            report(done, len(data))
        return sums.result(found.loaded.name, adapter.layer_names)


class _Sums:
    """Counts over queries, and for each input the worst of its queries."""

    def __init__(self, shape: tuple[int, int], n_inputs: int, options: BudgetSettings) -> None:
        self.options, self.n_keys, by_bits = options, 0, (2, len(options.bits))  # keys as they are, and rotated
        self.counts = {name: np.zeros((*by_bits, *shape)) for name in _COUNTS}
        self.open = np.zeros((n_inputs, *by_bits, *shape))  # the share of an input's selections that is not certified
        self.variation = np.zeros((n_inputs, *by_bits, *shape))
        self.keys, self.total, self.n_queries = np.zeros((n_inputs, *shape)), np.zeros(shape), np.zeros(shape)

    def add(self, reading: LayerReading, index: IntArray) -> None:
        """Add one layer on one batch; windows of an image belong to their input."""
        import torch

        layer, n_heads = reading.layer, reading.queries.shape[1]
        at = (layer, slice(0, n_heads))
        of_row = np.repeat(index, len(reading.queries) // len(index))
        statistics = reading.statistics((self.options.tolerance,))
        counted = (statistics.n_visible >= 2) & ~statistics.entropy.isnan()
        needed = (statistics.n_visible - statistics.n_negligible[0]).masked_fill(~counted, 0)
        self.n_keys = max(self.n_keys, int(statistics.n_visible.max()))
        self.total[at] += needed.sum(dim=(0, 2)).cpu().numpy()
        self.n_queries[at] += counted.sum(dim=(0, 2)).cpu().numpy()
        np.maximum.at(self.keys[:, layer, :n_heads], of_row, needed.amax(dim=2).cpu().numpy())
        wide = torch.promote_types(reading.queries.dtype, torch.float32)
        queries, keys = reading.queries.to(wide), reading.grouped_keys.to(wide)
        is_key = reading.real if len(reading.real[0]) == keys.shape[2] else reading.real.new_ones(keys.shape[::2][:2])
        share = (is_key / is_key.sum(dim=1, keepdim=True).clamp(min=1)).to(wide)  # (B, S): padding is not in the mean
        centre = (share[:, None, None] @ keys).to(wide)  # (B, G, 1, d)
        for turned, rotation in enumerate((None, rotation_matrix(reading.queries.shape[-1], self.options.seed))):
            for k, bits in enumerate(self.options.bits):
                rounded = round_keys(keys, bits, rotation, centre=centre)
                rounded = rounded._replace(error=rounded.error * is_key[:, None])  # nobody sees padding
                found = certify_rounding(queries, keys, rounded, reading.rule)
                decided = found.decided & counted & ~statistics.tied
                for name in _COUNTS:
                    self.counts[name][turned, k, layer, :n_heads] += (
                        (getattr(found, name) & decided).sum(dim=(0, 2)).cpu().numpy()
                    )
                missing = (~found.certified & decided).sum(dim=2).double() / decided.sum(dim=2).clamp(min=1)
                moved = found.variation.masked_fill(~counted, 0.0).amax(dim=2)
                for worst, values in ((self.open, missing), (self.variation, moved)):
                    np.maximum.at(worst[:, turned, k, layer, :n_heads], of_row, values.cpu().double().numpy())

    def result(self, model: str, layer_names: tuple[str, ...]) -> KeyBudgets:
        """The budgets of all heads, by plain or rotated keys at each number of bits, whichever has more certified."""
        options, missing = self.options, self.n_queries == 0
        # chosen on every second input, and bounded on the others: a choice by the same inputs would be no calibration
        rotated = self.open[::2, 1].mean(axis=0) < self.open[::2, 0].mean(axis=0)

        def better(values: FloatArray) -> FloatArray:
            chosen = np.where(rotated, values[1], values[0])
            return np.where(missing, np.nan, chosen)

        with np.errstate(invalid="ignore", divide="ignore"):
            shares = {name: better(self.counts[name] / self.counts["decided"]) for name in _COUNTS[:4]}
            mean_keys = self.total / self.n_queries
        bounds = [conformal_bound(worst[1::2], options.confidence) for worst in (self.open, self.variation)]
        return KeyBudgets(
            model, options, layer_names, len(self.keys), int(self.counts["decided"].max()), self.n_keys,
            np.where(missing, np.nan, conformal_bound(self.keys, options.confidence)), mean_keys,
            shares["certified"], shares["robust"], shares["resolved"], shares["changed"], rotated, better(bounds[0]), better(bounds[1]),
        )  # fmt: skip
