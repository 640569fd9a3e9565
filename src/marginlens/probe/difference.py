"""The difference of two models of one architecture: every measure of every head, and the distance of their attention maps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import InputError
from marginlens.probe.measures import Measure, ranked_heads
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.inputs import Inputs, TextInputs
from marginlens.probe.models.loading import LoadedModel, as_inputs, as_loaded, attention_implementation, tower_for
from marginlens.probe.models.reading import finite_heads, read_attention
from marginlens.probe.result import JSON_DIGITS, ProbeResult, ProbeSettings, _Measured
from marginlens.probe.run import probe_model
from marginlens.result import axes_for, draw_matrix, jsonable
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.typing import ArrayLike, Axes, FloatArray
from marginlens.words import Fact, short

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOTAL_VARIATION = Measure("total_variation", "Attention maps")
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")


@dataclass(frozen=True, repr=False, eq=False)
class ProbeDifference(_Measured):
    """The differences between the heads of two models on the same inputs; layers and heads are counted from 0.

    `difference["entropy"]` is an array (n_layers, n_heads): the number of `probed` minus that of `against`. `difference["total_variation"]`
    is not a difference, but the distance of their attention maps, from 0 to 1.

    Attributes:
        probed: the probe of the model.

        against: the probe of the other model.

        measures: arrays by name: total_variation, and the difference of every measure that both models have.

    `to_frame()` has one row per head: layer, head, and every difference by its name.
    """

    probed: ProbeResult
    against: ProbeResult
    measures: dict[str, FloatArray]
    quantities = (
        "{probed.model} against {against.model}: {size_words}, mean total variation {measures[total_variation]:mean}"
    )

    def layer_name(self, layer: int) -> str:
        """Return the name of a layer in both models."""
        return self.probed.layer_name(layer)

    @property
    def shown(self) -> tuple[Measure, ...]:
        """The measures with a difference in some head, the total variation of the maps first."""
        return (TOTAL_VARIATION, *super().shown)

    @property
    def notes(self) -> tuple[Fact, ...]:
        """Notes on what could not be measured, each once, with the model's name if only one of the two has it."""
        first, second = self.probed.notes, self.against.notes
        both = [note for note in first if note in second]
        of_one_model = [
            Fact("note.of_model", {"model": result.model, "note": note})
            for result in (self.probed, self.against)
            for note in result.notes
            if note not in both
        ]
        return (*both, *of_one_model)

    def changed_heads(self, count: int | None = None, *, measure: str = "total_variation") -> list[tuple[int, int]]:
        """Return layer and head of those that differ most by a measure, the largest modulus first; heads without a number are left out."""
        return ranked_heads(np.abs(self[measure]), count)

    def rows(self, count: int | None = None) -> list[dict[str, Any]]:
        """Return one row for each of the heads that changed most: name, total variation, and a few measures of both models,
        `against` first.
        """
        rows = []
        for layer, head in self.changed_heads(count):
            row: dict[str, Any] = {
                "head": self.head_name(layer, head),
                "total variation": float(self["total_variation"][layer, head]),
            }
            for name, title in (
                ("entropy", "entropy"),
                ("relative_nnz", "nnz/T"),
                ("sink_share", "sink"),
                ("frobenius", "norm of W"),
            ):
                before, now = (float(result[name][layer, head]) for result in (self.against, self.probed))
                if np.isfinite(before) or np.isfinite(now):
                    row[title] = f"{short(before)} → {short(now)}"
            rows.append(row)
        return rows

    def findings(self) -> tuple[Fact, ...]:
        """Describe how far the attention has moved, in which heads most, and how sparsity and norms have changed.

        Returns:
            One fact for each finding; `str` of it is its text.
        """
        moved = self["total_variation"]
        if not np.nanmax(moved) > 0.0:
            return (Fact("difference.none", {"model": self.probed.model, "against": self.against.model}),)
        changed = [
            Fact("difference.head", {"head": self.head_name(*at), "moved": float(moved[at])})
            for at in self.changed_heads(3)
        ]
        facts = [Fact("difference.moved", {"mean": float(np.nanmean(moved)), "heads": changed})]
        if self.n_layers > 1:
            layers = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in moved])
            most, least = int(np.nanargmax(layers)), int(np.nanargmin(layers))
            names = {"most": self.layer_title(most), "least": self.layer_title(least)}
            sizes = {"largest": float(layers[most]), "smallest": float(layers[least])}
            facts.append(Fact("difference.layers", {**names, **sizes}))
        for name in ("entropy", "frobenius"):
            change = self.measures.get(name)
            if change is not None and np.isfinite(change).any():
                before, now = (float(np.nanmean(result[name])) for result in (self.against, self.probed))
                counts = {"n_larger": int(np.sum(change > 0.0)), "n_heads": int(np.isfinite(change).sum())}
                facts.append(Fact(f"difference.{name}", {"before": before, "now": now, **counts}))
        return tuple(facts)

    def to_dict(self) -> dict[str, Any]:
        """Return the differences as plain values, lists over layers and heads, and the names of the models; None if there is no number."""
        found = {"model": self.probed.model, "against": self.against.model, "inputs": self.probed.n_inputs}
        found |= {"layers": self.n_layers, "heads": self.n_heads, "measures": self.measures}
        found["notes"] = [str(note) for note in self.notes]
        return dict(jsonable({**found, "changed_heads": self.changed_heads()}, JSON_DIGITS))

    def plot(self, ax: Axes | None = None, *, measure: str = "total_variation") -> Axes:
        """Draw one measure of every head by colour, with layers downward and heads across; blue means smaller than in
        `against`. Return the axes.
        """
        ax = axes_for(ax)
        is_distance = measure == TOTAL_VARIATION.name
        draw_matrix(ax, self[measure], "Blues" if is_distance else "RdBu_r", 0.0 if is_distance else None)
        title = next((known.title for known in self.shown if known.name == measure), measure)
        ax.set(xlabel="head", ylabel="layer", title=f"{title}: {self.probed.model} against {self.against.model}")
        return ax


def compare_models(
    model: PreTrainedModel | LoadedModel,
    against: PreTrainedModel | LoadedModel,
    inputs: Inputs | ArrayLike,
    settings: ProbeSettings | None = None,
    *,
    progress: ProgressCallback | None = None,
) -> ProbeDifference:
    r"""Measure every head of two models of one architecture on the same inputs, and how they differ.

    For the attention a of a query in one model and b in the other the total variation is :math:`\frac12 \sum_t |a_t - b_t|`.

    Args:
        model: a loaded Hugging Face model, or the result of `load_model`, such as a checkpoint after fine-tuning.

        against: another such model of the same architecture, such as the checkpoint before.

        inputs: inputs as in `probe_model`; texts are read with the tokenizer of `model`.

        settings: see `ProbeSettings`; no examples are kept.

        progress: called as `progress(done, total)`.

    Returns:
        Differences of shape (n_layers, n_heads), `model` minus `against`, and the mean total variation of the maps. To check
        them, use `probe_model` for the numbers of each model and `read_attention` for the maps.

    Examples:
        >>> from marginlens.data import write_samples
        >>> from marginlens.probe import compare_models, load_model
        >>> written = write_samples("samples")
        >>> base, tuned = load_model("samples/tiny-model"), load_model("samples/tiny-model")
        >>> tuned.model.encoder.layer[1].attention.self.query.weight.data *= 2.0
        >>> difference = compare_models(tuned, base, ["the cat sat on the mat", "she said nothing"])
        >>> [layer for layer, head in difference.changed_heads(2)]
        [1, 1]
    """
    with attention_implementation(model, "eager"), attention_implementation(against, "eager"):
        return _compared(as_loaded(model), as_loaded(against), inputs, settings or ProbeSettings(), progress)


def _compared(
    first: LoadedModel,
    second: LoadedModel,
    inputs: Inputs | ArrayLike,
    settings: ProbeSettings,
    progress: ProgressCallback | None,
) -> ProbeDifference:
    """Compare models whose attention can be read; see `compare_models`."""
    options = replace(settings, examples=0)
    _check_alike(first, second)
    data = as_inputs(first, inputs)
    _check_readable(second, data)
    report, results = as_progress(progress), []
    for k, loaded in enumerate((first, second)):

        def part(done: int, total: int, k: int = k) -> None:
            if report is not None:
                report(k * total + done, 3 * total)

        results.append(probe_model(loaded, data, options, progress=part))
    probed, other = (
        replace(result, model=name) for result, name in zip(results, _distinct_names(first, second), strict=True)
    )
    if probed["nnz"].shape != other["nnz"].shape:
        raise _unlike(other.size_words, probed.size_words)
    moved = total_variation(first, second, data)
    if report is not None:
        report(1, 1)
    shared = [
        name
        for name in probed.measures
        if name in other.measures and name not in ("n_constraints", "n_tied", "residual")
    ]
    return ProbeDifference(
        probed, other, {TOTAL_VARIATION.name: moved, **{name: probed[name] - other[name] for name in shared}}
    )


def _distinct_names(first: LoadedModel, second: LoadedModel) -> tuple[str, str]:
    """Return the names of two models; equal ones get as many folders above as it takes, or a number."""
    if first.name != second.name:
        return first.name, second.name
    places = [Path(str(getattr(one.model.config, "name_or_path", ""))).resolve().parts for one in (first, second)]
    for n_parts in range(2, min(map(len, places)) + 1):
        one, other = ("/".join(parts[-n_parts:]) for parts in places)
        if one != other:
            return one, other
    return f"{first.name} (first)", f"{second.name} (second)"


def total_variation(first: LoadedModel, second: LoadedModel, inputs: Inputs) -> FloatArray:
    """Return the mean total variation between the attention of two models, (n_layers, n_heads), over queries that see two
    tokens or more.
    """
    sums: dict[int, FloatArray] = {}
    counts: dict[int, int] = {}
    networks = [tower_for(loaded.model, inputs) for loaded in (first, second)]
    for batch in inputs.batches():
        readings: list[Iterator[Any]] = [read_attention(network, batch.inputs, allow_nan=True) for network in networks]
        for one, other in zip(*readings, strict=True):
            visible = one.visible.cpu()
            counted = visible.sum(dim=-1) >= 2  # (n_inputs, n_queries)
            apart = (one.attention.cpu().double() - other.attention.cpu().double()).abs()
            moved = 0.5 * apart.masked_fill(~(visible & counted[..., None])[:, None], 0.0).sum(dim=(0, 2, 3)).numpy()
            total = np.where(finite_heads(one) & finite_heads(other), moved, np.nan)
            sums[one.layer] = sums.get(one.layer, 0.0) + total
            counts[one.layer] = counts.get(one.layer, 0) + int(counted.sum())
    n_heads = max(len(values) for values in sums.values())
    found = np.full((max(sums) + 1, n_heads), np.nan)
    for layer, values in sums.items():
        if counts[layer]:
            found[layer, : len(values)] = values / counts[layer]
    return found


# ---- which models can be compared


def _check_alike(first: LoadedModel, second: LoadedModel) -> None:
    """Raise, before either model runs, if the models differ in family or size."""
    expected, got = map(_architecture, (first.model, second.model))
    if expected != got or type(adapter_for(first.model)) is not type(adapter_for(second.model)):
        raise _unlike(got, expected)


def _architecture(model: PreTrainedModel) -> str:
    """Describe the family and the sizes of a model in words."""
    n_layers, n_heads, width = (getattr(_text_config(model), name, None) for name in _SIZES)
    return f"{model.config.model_type} with {n_layers} layers of {n_heads} heads and width {width}"


def _text_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config


def _unlike(got: str, expected: str) -> InputError:
    return InputError("against", f"a model of the same architecture, {expected}", got, "Probe each of them instead.")


def _check_readable(second: LoadedModel, data: Inputs) -> None:
    """Raise if the second model has no embedding for some token id: two tokenizers would give two sets of inputs."""
    if not isinstance(data, TextInputs):
        return
    n_words, largest = (
        getattr(_text_config(second.model), "vocab_size", None),
        max(int(np.max(ids)) for ids in data.ids),
    )
    if isinstance(n_words, int) and largest >= n_words:
        raise InputError(
            "against", f"a model that reads the same tokens, of ids up to {largest}", f"one with {n_words} of them"
        )
