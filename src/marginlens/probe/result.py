"""Settings and results of a probe: measures by layer and head, examples and preferences, and their curves over training."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marginlens.errors import InputError, whole_number
from marginlens.names import nearest
from marginlens.probe.heads.plane import QueryPlane
from marginlens.probe.heads.preferences import Preference, PreferenceGraph
from marginlens.probe.measures import (
    BESIDE,
    EVEN_NNZ,
    HEAD_KINDS,
    HEAD_MEASURES,
    MAX_MARGIN_GROUPS,
    MEASURES,
    MIN_RELATIVE_CHANGE,
    MIN_TREND_CHECKPOINTS,
    MOST_QUERIES,
    SIGNIFICANCE,
    SINK_KINDS,
    Measure,
    RankTest,
    measure_title,
    rank_test,
)
from marginlens.result import Described, Displayed, Result, Tabular, axes_for, counted, draw_matrix, jsonable
from marginlens.typing import Axes, BoolArray, FloatArray, IntArray
from marginlens.words import Fact

JSON_DIGITS = 6  # significant: float32 models have no more
_LOW, _HIGH, _BINS_PER_DECADE = -12, 8, 400  # decades of margins; a bin is 0.6% wide
_N_BINS = (_HIGH - _LOW) * _BINS_PER_DECADE
_FIRST_BAR_SHARE = 0.002  # of all margins, that a histogram's first bar may gather


# ---- what is measured


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of a probe.

    Args:
        max_margin: whether to measure how max-margin each head is, by far the most expensive part.

        queries: the number of random queries from each input in the max-margin problem.

        max_margin_inputs: the number of inputs in the max-margin part, evenly spread over all inputs; the other measures use
            all.

        offset: for models with rotary positions, the position of the query minus that of the key at which W is taken. Without
            it such models have no norms of W and no max-margin part.

        examples: the number of inputs whose attention maps are recorded.

        longest_example: the largest number of tokens of such an input; for longer inputs only the first query's map is
            recorded.

        preferences: the number of preferences recorded for each head.

        seed: the seed of the sampled queries and of the random heads, both in the max-margin part.

    Examples:
        >>> from marginlens.probe import ProbeSettings
        >>> ProbeSettings(max_margin=True, seed=1).queries
        1
    """

    max_margin: bool = False
    queries: int = 1
    max_margin_inputs: int = 200
    offset: int | None = None
    examples: int = 6
    longest_example: int = 24
    preferences: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.max_margin, bool):
            raise InputError("max_margin", "True or False", repr(self.max_margin))
        smallest = {"queries": 1, "max_margin_inputs": 1, "longest_example": 2}
        smallest |= dict.fromkeys(("examples", "preferences", "seed"), 0)
        for name, at_least in (smallest if self.offset is None else {**smallest, "offset": 0}).items():
            whole_number(getattr(self, name), name, at_least=at_least)


# ---- one model


@dataclass(frozen=True, repr=False, eq=False)
class MarginCounts(Described):
    """Counts (…, n_bins) of nonnegative margins; the first bin also holds margins below 1e-12, the last those above 1e8."""

    counts: IntArray
    quantities = "{counts.sum} margins"

    @classmethod
    def empty(cls, *shape: int) -> MarginCounts:
        """Return counts without margins, for each index of `shape`."""
        return cls(np.zeros((*shape, _N_BINS), dtype=np.int64))

    def add(self, index: int, margins: FloatArray) -> None:
        """Count margins (n_heads, n) for the heads of one layer, except those that are not finite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            bins = np.floor((np.log10(margins) - _LOW) * _BINS_PER_DECADE)
        bins = np.clip(np.nan_to_num(bins, nan=0.0, neginf=0.0), 0, _N_BINS - 1).astype(np.int64)
        bins += _N_BINS * np.arange(len(margins))[:, None]
        counts = np.bincount(bins[np.isfinite(margins)], minlength=len(margins) * _N_BINS)
        self.counts[index, : len(margins)] += counts.reshape(len(margins), _N_BINS)

    def quantile(self, share: float) -> FloatArray:
        """Return the margin that this share of the queries does not exceed, (…), to 0.3%; nan if none was counted, 0 below 1e-12."""
        total = self.counts.sum(axis=-1)
        reached = np.cumsum(self.counts, axis=-1) >= np.maximum(share * total, 0.5)[..., None]
        bins = np.argmax(reached, axis=-1)
        value = 10.0 ** (_LOW + (bins + 0.5) / _BINS_PER_DECADE)
        return np.where(total > 0, np.where(bins == 0, 0.0, value), np.nan)

    def histogram(self, per_decade: int = 10) -> tuple[FloatArray, IntArray]:
        """Return the edges (n_bars + 1,) and counts (…, n_bars) of wider bars; the first bar also holds the few smallest
        margins, and zeros.
        """
        bars = self.counts.reshape(*self.counts.shape[:-1], -1, _BINS_PER_DECADE // per_decade).sum(axis=-1)
        totals = bars.reshape(-1, bars.shape[-1]).sum(axis=0)
        totals[0] -= self.counts[..., 0].sum()  # zeros, on no logarithmic scale
        reached = np.cumsum(totals)
        if reached[-1] == 0:
            return 10.0 ** (_LOW + np.arange(2) / per_decade), bars[..., :1]
        first, last = (int(np.argmax(reached >= share * reached[-1])) for share in (_FIRST_BAR_SHARE, 1.0))
        shown = bars[..., first : last + 1].copy()
        shown[..., 0] += bars[..., :first].sum(axis=-1)
        return 10.0 ** (_LOW + np.arange(first, last + 2) / per_decade), shown


class TokenShare(NamedTuple):
    """A token by name, its share of the attention of all heads, and its share of all pairs of query and visible token."""

    name: str
    share: float
    expected: float


@dataclass(frozen=True, repr=False, eq=False)
class Example(Displayed, Tabular):
    """One input as every head saw it.

    Attributes:
        name: the text, or the place of an image in its file.

        tokens: (n_tokens,) the names of the tokens.

        queries: (n_queries,) the positions whose attention is recorded: all of a short input, the first of a long one.

        attention: (n_layers, n_heads, n_queries, n_tokens) the probabilities.

        selected: (n_layers, n_heads, n_queries) the selected tokens, -1 in a tie or if a query sees only one token.

        margins: (n_layers, n_heads, n_queries) the margins, nan if a query sees only one token, zero up to rounding in a tie.

        decoder_tokens: (n_tokens,) the names of the tokens that a decoder reads, if there is one: the queries of its layers,
            and the tokens of its self-attention.

        layer_names: as in `ProbeResult`, if there is a decoder; they show which layers belong to it.

        grid: the rows and columns of patches, if the tokens after the first belong to an image.

        image: (height, width, channels) that image in bytes, at the size that the model reads.

        planes: the choice of each head's query with the largest margin as a problem in the plane, by (layer, head), for short
            texts with known keys.

    `to_frame()` has one row per layer, head and query: layer, head, query, token, selected, selected_token, margin (of the logits).
    """

    name: str
    tokens: tuple[str, ...]
    queries: IntArray
    attention: npt.NDArray[np.float32]
    selected: IntArray
    margins: FloatArray
    grid: tuple[int, int] | None = None
    image: npt.NDArray[np.uint8] | None = None
    decoder_tokens: tuple[str, ...] = ()
    layer_names: tuple[str, ...] = ()
    planes: Mapping[tuple[int, int], QueryPlane] = field(default_factory=dict, repr=False)
    quantities = "{name:.40}, {tokens:#} tokens, {queries:#} queries"

    def to_dict(self) -> dict[str, Any]:
        """Return the selections as plain values, without the maps."""
        found = {name: getattr(self, name) for name in ("name", "tokens", "queries", "selected", "margins")}
        return dict(jsonable({**found, "decoder_tokens": self.decoder_tokens or None}, JSON_DIGITS))

    def _tower(self, layer: int) -> str:
        return self.layer_names[layer].split()[0] if self.decoder_tokens else ""

    def query_tokens(self, layer: int) -> tuple[str, ...]:
        """Return the tokens that a layer attends with."""
        return self.decoder_tokens if self._tower(layer) in ("decoder", "cross") else self.tokens

    def attended_tokens(self, layer: int) -> tuple[str, ...]:
        """Return the tokens that a layer attends to."""
        return self.decoder_tokens if self._tower(layer) == "decoder" else self.tokens

    def _columns(self) -> dict[str, Any]:
        layer, head, query = np.indices(self.selected.shape).reshape(3, -1)
        chosen, places = self.selected.ravel(), self.queries[query]
        layers = range(len(self.selected))
        queries, attended = ([tokens(k) for k in layers] for tokens in (self.query_tokens, self.attended_tokens))
        of_query, of_selected = (list(zip(layer.tolist(), at.tolist(), strict=True)) for at in (places, chosen))
        names = {"token": [queries[at][k] for at, k in of_query], "selected": chosen}
        tokens = [attended[at][k] if k >= 0 else "" for at, k in of_selected]
        return {
            "layer": layer,
            "head": head,
            "query": places,
            **names,
            "selected_token": tokens,
            "margin": self.margins.ravel(),
        }


class _Measured(Result, Tabular):
    """The base of results with `measures` by name; the last two axes of a measure are layers and heads."""

    measures: Mapping[str, FloatArray]
    layer_names: tuple[str, ...] = ()

    @property
    def n_layers(self) -> int:
        """The number of attention layers."""
        return int(next(iter(self.measures.values())).shape[-2])

    @property
    def n_heads(self) -> int:
        """The number of query heads of each layer."""
        return int(next(iter(self.measures.values())).shape[-1])

    def layer_name(self, layer: int) -> str:
        """Return the name of a layer: its number, after the part of the model if there are several."""
        return self.layer_names[layer] if self.layer_names else str(layer)

    def layer_title(self, layer: int) -> str:
        """Name a layer in a sentence: layer 3, or cross 1 in a model with several stacks."""
        name = self.layer_name(layer)
        return f"layer {name}" if name.isdecimal() else name

    def head_name(self, layer: int, head: int) -> str:
        """Return the name of a head: L3H5, or cross 1 H5 in a model with several stacks."""
        name = self.layer_name(layer)
        return f"L{name}H{head}" if name.isdecimal() else f"{name} H{head}"

    @property
    def size_words(self) -> str:
        """The numbers of layers and heads, in words."""
        return f"{counted(self.n_layers, 'layer')} of {counted(self.n_heads, 'head')}"

    @property
    def shown(self) -> tuple[Measure, ...]:
        """The measures with a number for some head, in their order of display."""
        known = self.measures
        return tuple(
            measure for measure in MEASURES if measure.name in known and measure.has_values(known[measure.name])
        )

    def _columns(self) -> dict[str, Any]:
        shape = next(iter(self.measures.values())).shape
        *_, layer, head = np.indices(shape).reshape(len(shape), -1)
        return {"layer": layer, "head": head, **{name: np.ravel(values) for name, values in self.measures.items()}}

    def __getitem__(self, name: str) -> FloatArray:
        if name not in self.measures:
            raise InputError(
                "name", f"one of {', '.join(self.measures)}", repr(name), nearest(str(name), self.measures)
            )
        return self.measures[name]


@dataclass(frozen=True, repr=False, eq=False)
class ProbeResult(_Measured):
    """The result of a probe of a model on one set of inputs; layers and heads are counted from 0.

    `result["nnz"]` is the measure of that name, an array (n_layers, n_heads); `result.shown` lists the measures with
    explanations. Averages are over all queries that see at least two tokens, with equal weights. A nan means that there is
    nothing to measure: a first token that sees only itself, no single matrix W, or selections that no W makes.

    Attributes:
        model: the name of the model.

        family: its family, as its configuration names it.

        n_inputs: the number of inputs.

        n_queries: the number of queries that see at least two tokens.

        mean_tokens: the mean number of tokens that such a query sees, over all layers.

        measures: arrays (n_layers, n_heads) by name, see `MEASURES`. With the max-margin part also correlation, margin_ratio
            and low_ratio, each for the head and for random heads, and n_constraints, n_tied and residual of the head's problem.

        margins: the counts of the margins of each head.

        w_offset: with rotary positions, the offset at which W, its norms and the max-margin part hold; None if W is free of positions.

        examples: a few inputs with their maps and selections.

        preferences: the preferences of each head by (layer, head), the best supported first.

        graphs: the priority graph among the tokens of the strongest preferences, by (layer, head).

        notes: notes on what could not be measured, and why; `str` of a note is its text.

        sinks: the tokens, by name or as the first token, whose attention exceeds an even share the most.

        head_sinks: the first such token of each head that has one, by (layer, head).

        layer_names: (n_layers,) the names of the layers: their numbers, after encoder, decoder or cross if there are several
            stacks.

        weights_missing: the reason why W is not read; its norms are then nan, and there is no max-margin part. Empty if W is
            read.

    `to_frame()` has one row per head: layer, head, and every measure by its name.
    """

    model: str
    family: str
    n_inputs: int
    n_queries: int
    mean_tokens: float
    measures: Mapping[str, FloatArray]
    margins: MarginCounts
    settings: ProbeSettings
    w_offset: int | None = None
    examples: tuple[Example, ...] = ()
    preferences: Mapping[tuple[int, int], tuple[Preference, ...]] = field(default_factory=dict, repr=False)
    graphs: Mapping[tuple[int, int], PreferenceGraph] = field(default_factory=dict, repr=False)
    notes: tuple[Fact, ...] = ()
    sinks: tuple[TokenShare, ...] = ()
    head_sinks: Mapping[tuple[int, int], TokenShare] = field(default_factory=dict, repr=False)
    layer_names: tuple[str, ...] = ()
    weights_missing: str = ""
    seconds: float = float("nan")
    quantities = (
        "{model}: {size_words} on {n_inputs} inputs, mean nnz/T {measures[relative_nnz]:mean}, "
        "{has_max_margin:with|without} max-margin"
    )

    def __str__(self) -> str:
        from marginlens.probe.findings import main_results

        return "\n".join([*map(str, main_results(self)), repr(self)])

    def _repr_html_(self) -> str:
        from marginlens.probe.page import notebook_view

        return notebook_view(self)

    @property
    def kinds(self) -> npt.NDArray[np.str_]:
        """The kind of each head, (n_layers, n_heads), a key of `HEAD_KINDS`; empty if nothing was measured."""
        by_share = {name: kind.measure for name, kind in HEAD_KINDS.items() if kind.measure}
        kinds = np.where(self["relative_nnz"] >= EVEN_NNZ, "even", self._most_frequent(by_share))
        return np.where(np.isfinite(self["nnz"]), kinds, "")

    @property
    def kinds_beside(self) -> npt.NDArray[np.str_]:
        """The kind of each sink head by what it selects among the tokens that are no sinks, (n_layers, n_heads): "previous",
        "next", "same" or "content"; empty for other heads, and if tokens have no names.

        A sink head is one that most queries use to select the first token or a separator.
        """
        is_sink = np.isin(self.kinds, SINK_KINDS) & np.isfinite(self.measures.get(BESIDE["same"], np.nan))
        return np.where(is_sink, self._most_frequent(BESIDE), "")

    def _most_frequent(self, measures: Mapping[str, str]) -> npt.NDArray[np.str_]:
        """Return the kind with the largest share of queries, if these are most, otherwise "content"; `measures` are by kind."""
        absent = np.zeros_like(self["nnz"])
        shares = np.nan_to_num([self.measures.get(measure, absent) for measure in measures.values()])
        frequent = np.array(list(measures))[np.argmax(shares, axis=0)]
        return np.where(shares.max(axis=0) > MOST_QUERIES, frequent, "content")

    @property
    def has_max_margin(self) -> bool:
        """True if the max-margin part was measured."""
        return "correlation" in self.measures

    def to_dict(self) -> dict[str, Any]:
        """Return all but attention maps and counts of margins as plain values: lists over layers and heads, None for missing numbers."""
        heads = {measure.name for measure in HEAD_MEASURES}
        separated = {name: values for name, values in self.measures.items() if name not in heads}
        named = ("model", "family", "layer_names", "sinks", "examples")
        found = {
            "notes": [str(note) for note in self.notes],
            **{name: getattr(self, name) for name in (*named, "mean_tokens", "seconds", "settings", "w_offset")},
            **{name: getattr(self, f"n_{name}") for name in ("layers", "heads", "inputs", "queries")},
            "weights_missing": self.weights_missing or None,
            "kinds": self.kinds.tolist(),
            "kinds_beside": self.kinds_beside.tolist(),
            "measures": {name: values for name, values in self.measures.items() if name in heads},
            "max_margin": separated or None,
            "head_sinks": _by_head(self.head_sinks),
            "preferences": _by_head(
                {(*at, k): row for at, rows in self.preferences.items() for k, row in enumerate(rows)}
            ),
            "graphs": _by_head(self.graphs),
        }
        return dict(jsonable(found, JSON_DIGITS))

    def plot(self, ax: Axes | None = None, *, measure: str = "relative_nnz") -> Axes:
        """Draw one measure of every head by colour, with layers downward and heads across. Return the axes."""
        ax = axes_for(ax)
        draw_matrix(ax, self[measure], "viridis", float(np.nanmin(self[measure])))
        ax.set(xlabel="head", ylabel="layer", title=f"{self.model}: {measure_title(measure)}")
        if not all(name.isdecimal() for name in self.layer_names):
            ax.set_yticks(np.arange(self.n_layers), self.layer_names)
        return ax


def _by_head(found: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Return what is known of single heads as rows; a key starts with layer and head."""
    return [
        {"layer": layer, "head": head, **jsonable(row)}
        for (layer, head, *_), row in sorted(found.items(), key=itemgetter(0))
    ]


# ---- the checkpoints of a training run


@dataclass(frozen=True, repr=False, eq=False)
class CheckpointCurves(_Measured):
    """Measures of every checkpoint, in the order of training.

    Attributes:
        model: the family and size of all checkpoints.

        names: (n_checkpoints,) the names of the checkpoints.

        steps: (n_checkpoints,) the numbers in these names, or 0, 1, 2, … if they have none.

        measures: arrays (n_checkpoints, n_layers, n_heads) by name, including those of the max-margin part if it was measured.

        n_inputs: the number of inputs measured.

        notes: notes on what could not be measured, and why; `str` of a note is its text.

        layer_names: (n_layers,) the names of the layers, as in `ProbeResult`.

        is_finished: whether a monitored run is over; its alarms are then about the past.

    `to_frame()` has one row per checkpoint and head: checkpoint, step, layer, head, and every measure by its name.
    """

    model: str
    names: tuple[str, ...]
    steps: FloatArray
    measures: Mapping[str, FloatArray]
    n_inputs: int
    notes: tuple[Fact, ...] = ()
    layer_names: tuple[str, ...] = ()
    is_finished: bool = False
    quantities = "{model}: {names:# checkpoint|checkpoints}, {n_inputs} inputs"

    def _columns(self) -> dict[str, Any]:
        n_heads = self.n_layers * self.n_heads
        names = [name for name in self.names for _ in range(n_heads)]
        return {"checkpoint": names, "step": np.repeat(self.steps, n_heads), **super()._columns()}

    @property
    def can_have_trend(self) -> bool:
        """True if there are enough checkpoints to distinguish a trend from chance."""
        return len(self.names) >= MIN_TREND_CHECKPOINTS

    def has_measure(self, name: str) -> BoolArray:
        """Return whether some head has a measure, (n_checkpoints,): a monitor does not take all of them every time."""
        return np.asarray(np.isfinite(self[name]).any(axis=(1, 2)))

    def by_layer(self, name: str) -> FloatArray:
        """Return the mean of a measure over the heads of each layer that have it, (n_checkpoints, n_layers); nan if none has."""
        return finite_mean(self[name])

    def trends(self, name: str) -> list[RankTest]:
        """Return for each layer the rank correlation of its mean with the order of training, and how often chance gives one as strong."""
        known = self.has_measure(name)
        return [rank_test(self.steps[known], curve[known]) for curve in self.by_layer(name).T]

    def relative_change(self, name: str) -> FloatArray:
        """Return the last over the first mean of each layer, minus 1, (n_layers,); nan if the first is zero or unknown."""
        known = self.by_layer(name)[self.has_measure(name)]
        if not len(known):
            return np.full(self.n_layers, np.nan)
        first, last = known[0], known[-1]
        return last / np.where(first == 0.0, np.nan, first) - 1.0

    def change(self, name: str, layer: int = -1) -> Fact:
        """Return the first and the last mean of one layer, with the rank correlation if there are enough checkpoints."""
        curve, rank = self.by_layer(name)[self.has_measure(name), layer], self.trends(name)[layer].correlation
        if not len(curve):
            return Fact("curve.change", {"case": "none"})
        ends = {"first": float(curve[0]), "last": float(curve[-1])}
        has_rank = np.isfinite(rank) and self.can_have_trend
        return Fact("curve.change", {**ends, "rank": float(rank), "case": "ranked" if has_rank else "plain"})

    def has_trend(self, name: str, sign: int) -> BoolArray:
        """Return whether a layer's mean grows (sign 1) or falls (-1) by more than chance explains, and by 5% or more, (n_layers,).

        The criteria are the number of checkpoints, a permutation test of the rank correlation with the step, and the change.
        """
        # Bonferroni: at most this share of runs without a trend shows one in some layer.
        level = SIGNIFICANCE / self.n_layers
        is_significant = [test.p_value <= level and sign * test.correlation > 0.0 for test in self.trends(name)]
        is_large = sign * np.nan_to_num(self.relative_change(name)) >= MIN_RELATIVE_CHANGE
        return np.array(is_significant) & is_large & self.can_have_trend

    def change_amount(self, name: str, layers: BoolArray) -> Fact:
        """Describe the range of the relative changes of some layers: percents or, from eleven times the first value on, factors."""
        shares = np.abs(self.relative_change(name)[layers])
        is_factor = bool(shares.min() >= 10.0)
        low, high = (float(end) + is_factor for end in (shares.min(), shares.max()))
        form = ".0f" if is_factor else ".0%"
        case = "one" if format(low, form) == format(high, form) else "two"
        unit = "factor" if is_factor else "percent"
        return Fact(f"curve_amount.{unit}", {"low": low, "high": high, "case": case})

    def rows(self, layer: int = -1, names: Collection[str] | None = None) -> list[dict[str, Any]]:
        """Return one row per checkpoint: means over the heads of one layer, the last by default, of all measures or of these."""
        chosen = [measure for measure in self.shown if names is None or measure.name in names]
        means = {measure.title: self.by_layer(measure.name)[:, layer] for measure in chosen}
        known = {title: values for title, values in means.items() if np.isfinite(values).any()}
        return [
            {"checkpoint": name, **{title: float(values[k]) for title, values in known.items()}}
            for k, name in enumerate(self.names)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values: lists over checkpoints, layers and heads, None for missing numbers."""
        trends = {name: np.array(self.trends(name)) for name in self.measures}  # (n_layers, 2)
        found = {name: getattr(self, name) for name in ("model", "steps", "layer_names", "measures")}
        found["notes"] = [str(note) for note in self.notes]
        tests = {
            name: {of: test[:, k] for of, test in trends.items()} for k, name in enumerate(("trends", "trend_p_values"))
        }
        return dict(jsonable({**found, "checkpoints": self.names, "inputs": self.n_inputs, **tests}, JSON_DIGITS))

    def plot(self, ax: Axes | None = None, *, measure: str = "relative_nnz") -> Axes:
        """Draw one measure over training, with a line for the mean of each layer's heads, dashed for random heads in the
        max-margin part. Return the axes.
        """
        from marginlens.plotting.style import shades
        from marginlens.result.palette import PATH

        ax, known = axes_for(ax), self.has_measure(measure)
        steps = self.steps[known]
        for layer, (curve, colour) in enumerate(
            zip(self.by_layer(measure)[known].T, shades(self.n_layers), strict=True)
        ):
            ax.plot(steps, curve, label=self.layer_title(layer), color=colour, marker="o", markersize=3.5)
        if measure in MAX_MARGIN_GROUPS:
            means = finite_mean(self[f"{measure}_random_head"][known].reshape(len(steps), -1))
            ax.plot(steps, means, label="baseline: random head", color=PATH, linestyle=(0, (6, 2, 1, 2)), linewidth=1.6)
        trend = self.trends(measure)[-1].correlation
        suffix = f" · last layer: rank correlation {trend:.2f}".replace("-", "−")
        where = "step" if self.names[0].startswith("step ") else "checkpoint"  # of a monitor, or of saved models
        ax.set(
            xlabel=f"{where}{suffix if np.isfinite(trend) and self.can_have_trend else ''}",
            ylabel=f"{measure_title(measure)}, mean of a layer",
            title=measure_title(measure),
        )
        ax.locator_params(axis="x", integer=True)
        values = np.concatenate([line.get_ydata() for line in ax.lines])
        if np.nanmin(values) >= 0.0 and np.nanmax(values) > 0.0:
            ax.set_ylim(0.0, 1.08 * np.nanmax(values))  # so that no curve lies on the frame
        return ax


def evenly(n: int, most: int) -> list[int]:
    """Return at most `most` of n indices, evenly spread from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(most, n)).round().astype(int)).tolist()


def finite_mean(values: FloatArray) -> FloatArray:
    """Compute the mean over the last axis of the finite values; nan if there are none."""
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    return np.where(count > 0, np.sum(np.where(known, values, 0.0), axis=-1) / np.maximum(count, 1), np.nan)
