"""X T5: for which first steps the flow of p selects what B's Theorem 5 promises, and for which it loses a whole class."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

import marginlens as ml
from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings import embedding_flow, first_step, initial_parameters
from marginlens.embeddings.one_step import FirstStep
from marginlens.theory.embedding_limits import (
    check_class_window,
    decisive_tokens,
    predict_embedding_limit,
    selected_tokens,
)
from marginlens.typing import Axes, Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.b.flow_ends import embedding_flow_end, flow_end
from marginlens_papers.claims.random_data import balanced_sequences

SAMPLES, IRRELEVANT, SIGNAL = 20, 40, 6.0
NEAR, FAR, COARSE = 100.0, 1000.0, 1e-4
LENGTHS, WIDTHS, DECISIVE = (8, 15, 30, 60), (128, 512, 2048, 8192), (1, 2, 5)
LENGTH, WIDTH = 30, 2048
RATES = (10.0, 100.0, 200.0, 400.0, 700.0, 1e3, 3e3, 1e4)  # η₀ at T = 30 and one decisive token a class
MOVES = (0.02, 10 / 120, 0.25, 100 / 120, 1.25, 200 / 120, 400 / 120, 700 / 120, 1e3 / 120, 25.0, 1e4 / 120, 300.0)
FEWER = (0.02, 10 / 120, 100 / 120, 200 / 120, 400 / 120, 700 / 120, 25.0, 1e4 / 120)
SHORT_SAMPLES, SHORT_WIDTH, SHORT_IRRELEVANT, SHORT_RUNS = 80, 1024, 120, 2
SHORT_LENGTHS, SHORT_DECISIVE, SHORT_MOVES = (4, 5, 6, 8), (1, 5, 20, 40), (0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
TRACED = (100.0, 400.0, 1e3)
_SHARE_COLOURS = ("#eba98c", "#f6f1ea", "#a9cbe8")  # from no run that comes right to all


class X_T5(Claim):
    labels = ("X T5", "B Thm 5", "B Eq. (10)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow every run of the map, and the controls."""
        quick = [(Cell(LENGTH, WIDTH, 1, rate / 120), 2) for rate in TRACED]
        quick += [(Cell(5, SHORT_WIDTH, k, 2.0, SHORT_SAMPLES), 1) for k in (1, 20)]
        cells = list(_cells()) if effort is Effort.PAPER else quick
        n_exact, n_blind = (1, 8) if effort is Effort.PAPER else (0, 1)
        exact_rates = RATES if effort is Effort.PAPER else ()
        window = [rate for rate in (200.0, 400.0, 700.0) if effort is Effort.PAPER or rate == 400.0]
        progress.expect(sum(n for _, n in cells) + n_exact * len(exact_rates) + n_blind * len(window) + len(TRACED))
        runs = []
        for cell, n in cells:
            for seed in range(n):
                runs.append((cell, seed, *_outcome(cell, seed)))
                progress.advance()
        blind = []
        for rate in window:
            for seed in range(n_blind):
                blind.append(_blind(Cell(LENGTH, WIDTH, 1, rate / 120), seed))
                progress.advance()
        changed = 0
        for rate in exact_rates:
            for seed in range(n_exact):
                cell = Cell(LENGTH, WIDTH, 1, rate / 120)
                changed += _exact(cell, seed) != next(run[2] for run in runs if run[:2] == (cell, seed))
                progress.advance()
        traces = []
        for rate in TRACED:
            traces.append({"rate": rate, **_trace(Cell(LENGTH, WIDTH, 1, rate / 120), 0)})
            progress.advance()
        return _finding(runs, blind, changed, traces)

    # ---- the figures

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The map over lengths and over widths and numbers of decisive tokens, and three flows."""
        return {
            "map": _draw_map(finding),
            "short": _draw_short(finding),
            "flows": _draw_flows(finding.arrays["traces"]),
        }


class Cell(NamedTuple):
    """One setting: tokens of a sequence T, width d, decisive tokens of a class, m, by which the step moves their scores, and n."""

    T: int
    d: int
    k: int
    moved: float
    n: int = SAMPLES

    @property
    def rate(self) -> float:
        """η₀ when each decisive token of a class has its share of the class."""
        return 4.0 * self.T * self.k * self.moved

    @property
    def has_signal(self) -> bool:
        """Whether the step moves decisive scores by six standard deviations of a random score or more."""
        return self.moved * np.sqrt(self.d) >= SIGNAL


def _cells() -> Iterable[tuple[Cell, int]]:
    """Every setting of the map with its number of initialisations."""
    for T in LENGTHS:
        yield from ((Cell(T, WIDTH, 1, moved), 8 if T == LENGTH else 5) for moved in MOVES)
    for d in WIDTHS:
        if d != WIDTH:
            yield from ((Cell(LENGTH, d, 1, moved), 4) for moved in FEWER)
    for k in DECISIVE[1:]:
        yield from ((Cell(LENGTH, WIDTH, k, moved), 4) for moved in FEWER)
    for T, k, moved in itertools.product(SHORT_LENGTHS, SHORT_DECISIVE, SHORT_MOVES):
        yield Cell(T, SHORT_WIDTH, k, moved, SHORT_SAMPLES), SHORT_RUNS


def _finding(runs: list[Any], blind: list[bool], changed: int, traces: list[Any]) -> Finding:
    cells = [run[0] for run in runs]
    right, lost, inside = (np.array([run[k] for run in runs], dtype=bool) for k in (2, 3, 4))
    signal = np.array([cell.has_signal for cell in cells])
    row = np.array([cell[:3] == (LENGTH, WIDTH, 1) for cell in cells])
    rates = np.array([cell.rate for cell in cells])

    def share(*values: float) -> float:
        chosen = row & (np.abs(rates[:, None] / values - 1.0) < 1e-9).any(axis=1)
        return float(np.mean(right[chosen])) if chosen.any() else float("nan")

    named = signal & lost
    outside = signal & ~inside
    numbers = {
        "right_at_10_and_100": share(10.0, 100.0),
        "right_at_200_400_700": share(200.0, 400.0, 700.0),
        "right_at_1000_3000_10000": share(1e3, 3e3, 1e4),
        "right_in_the_window_without_v_in_the_keys": float(np.mean(blind)),
        "lost_runs_that_the_window_names": float(np.mean(inside[named])) if named.any() else float("nan"),
        "right_runs_among_those_outside": float(np.mean(right[outside])) if outside.any() else float("nan"),
        "right_runs_among_those_inside": float(np.mean(right[signal & inside])),
        "lost_runs_outside": float(np.sum(lost & outside)),
        "ends_that_full_accuracy_changes": float(changed),
        "runs": float(len(runs)),
    }
    ends = [f"{trace['along'][-1] / trace['norm'][-1]:.2f} at η₀ = {trace['rate']:g}" for trace in traces]
    per_rate = [int(np.sum(right[row & (np.abs(rates / rate - 1.0) < 1e-9)])) for rate in RATES]
    n_each = int(np.sum(row & (np.abs(rates / 400.0 - 1.0) < 1e-9)))
    measured = (
        f"T = 30, d = 2048: for η₀ = {', '.join(f'{rate:,.0f}' for rate in RATES)} only the decisive tokens are selected in "
        f"{', '.join(map(str, per_rate))} of {n_each} runs. Taking v out of the keys, {sum(blind)} of {len(blind)} runs inside the "
        f"window come right; left in, $⟨p, v⟩/‖p‖$ ends at {', '.join(ends)}. check_class_window names {int(np.sum(inside & named))} of "
        f"the {int(named.sum())} lost runs (m ≥ 6/√d); {int(np.sum(right & outside))} of {int(outside.sum())} runs outside it come "
        f"right, and {int(np.sum(right & signal & inside))} of {int(np.sum(signal & inside))} inside."
        if len(runs) > 20
        else f"{len(runs)} runs: right at η₀ = 100 and 1000, wrong at 400 (shares {share(100.0):g}, {share(1e3):g}, {share(400.0):g})."
    )
    note = _note(runs, right, lost, inside, signal)
    arrays = {"cells": np.array(cells), "right": right, "lost": lost, "inside": inside, "traces": traces}
    return Finding(measured, numbers, arrays, note)


def _note(runs: list[Any], right: Any, lost: Any, inside: Any, signal: Any) -> str:
    cells = [run[0] for run in runs]
    short = np.array([cell.n == SHORT_SAMPLES for cell in cells])
    high = np.array([cell.moved >= 300.0 for cell in cells])
    weak = ~signal
    parts = [
        "Nothing of this is proved; the theorem's own η₀ ≥ 4n²T² with d = 2048 is far outside what its proof covers. "
        "Why: the step gives all decisive tokens ±m v. A part of p along v lifts one label's tokens and sinks the other's, and it grows "
        "as the slope of the loss in the decisive logits to the power $Σm_s²$, while what lifts both grows as the first power; the class "
        "that sinks turns to irrelevant tokens with good random scores. "
        "Beyond the window $e^(−m)T$, what is left of the risen class, is less than 1/T, and p comes back."
    ]
    if weak.any():
        parts.append(
            f"Below m = 6/√d random scores decide: {int(right[weak].sum())} of {int(weak.sum())} runs end as they should."
        )
    if short.any():
        by_number = [short & np.array([cell.k == k for cell in cells]) for k in SHORT_DECISIVE]
        lost_shares = ", ".join(f"{int(lost[some].sum())} of {int(some.sum())}" for some in by_number)
        parts.append(
            f"Short sequences (T from 4 to 8) lose a class too if there are many decisive tokens: {lost_shares} runs at "
            f"{', '.join(map(str, SHORT_DECISIVE))} tokens a class."
        )
    if high.any():
        parts.append(
            f"At m = 300 (η₀ = 1,200 T) the width is no longer enough: {int(right[high].sum())} of {int(high.sum())} runs end as they "
            "should."
        )
    return " ".join(parts)


# ---- single runs
def _start(cell: Cell, seed: int) -> tuple[LabelledSequences, FirstStep]:
    """The data and the first step of one run."""
    wanted = SHORT_IRRELEVANT if cell.n == SHORT_SAMPLES else IRRELEVANT
    irrelevant = min(wanted, cell.n // 2 * (cell.T - 1))
    rng = np.random.default_rng([cell.n, cell.T, cell.k, irrelevant, cell.d, seed])
    data = balanced_sequences(cell.n, cell.T, cell.k, irrelevant, rng)
    return data, first_step(initial_parameters(data.n_vocabulary, cell.d, rng, np.float64), cell.rate, data)


def _outcome(cell: Cell, seed: int) -> tuple[bool, bool, bool]:
    """Whether the flow selects only the decisive tokens, whether it loses a class, and whether the step is inside the window."""
    data, step = _start(cell, seed)
    end = embedding_flow_end(step.after, data, NEAR, COARSE)
    decisive, chosen = decisive_tokens(data), selected_tokens(step.after.E, end, data)
    has = np.array([bool(np.isin(mine, ids).all()) for mine, ids in zip(decisive, chosen, strict=True)])
    lost = any(not has[data.y == label].any() for label in (-1.0, 1.0))
    right = all(map(np.array_equal, decisive, chosen))
    return right, lost, not check_class_window(data, rate=cell.rate).holds


def _exact(cell: Cell, seed: int) -> bool:
    """Whether the flow selects only the decisive tokens, at full accuracy and ten times as far out."""
    data, step = _start(cell, seed)
    found = predict_embedding_limit(step.start, cell.rate, data, until=ml.UntilNorm(FAR)).details
    return found.only_important and found.selects_every_sequence


def _blind(cell: Cell, seed: int) -> bool:
    """Whether the flow selects only the decisive tokens when the logits do not see v: keys without their part along it."""
    data, step = _start(cell, seed)
    after = step.after
    rows = np.concatenate([after.E, after.p[None], after.v[None]])
    coordinates = np.linalg.qr(rows.T)[1].T  # all three in coordinates of their span
    E, p, v = coordinates[:-2], coordinates[-2], coordinates[-1]
    keys = E - np.outer(E @ v, v)
    shape = (len(data), cell.T, E.shape[1])
    tokens = ml.TokenDataset(E[data.tokens].reshape(shape), data.y, K=keys[data.tokens].reshape(shape))
    end = flow_end(tokens, v, p, NEAR, COARSE)
    return all(map(np.array_equal, decisive_tokens(data), selected_tokens(keys, end, data)))


def _trace(cell: Cell, seed: int) -> dict[str, FloatArray]:
    """⟨p, v⟩ and ‖p‖ along one flow, and the mean attention on the decisive tokens of each label at its kept points."""
    data, step = _start(cell, seed)
    record = ml.Record(steps=[*range(41), *range(42, 101, 2)], keep=("x", "norm"))
    run = embedding_flow(step.after, data, until=ml.UntilNorm(NEAR), record=record, tolerance=COARSE)
    points = run.saved["x"]
    logits = points @ step.after.E.T  # (n_kept, n_vocabulary)
    token_logits = logits[:, data.tokens].reshape(len(points), len(data), cell.T)
    q = np.exp(token_logits - token_logits.max(axis=-1, keepdims=True))
    q /= q.sum(axis=-1, keepdims=True)
    decisive = np.array([ids[0] for ids in decisive_tokens(data)])
    weight = np.sum(q * (data.tokens.reshape(len(data), cell.T) == decisive[:, None]), axis=-1)
    attention = np.stack([weight[:, data.y == label].mean(axis=1) for label in (1.0, -1.0)])
    return {"along": points @ step.after.v, "norm": run.saved["norm"], "attention": attention}


def _draw_map(finding: Finding) -> Figure:
    rows = [(f"{T} tokens a sequence", (T, WIDTH, 1)) for T in LENGTHS]
    others = [(f"width {d:,}", (LENGTH, d, 1)) for d in WIDTHS]
    others += [(f"{k} decisive per class", (LENGTH, WIDTH, k)) for k in DECISIVE[1:]]
    tables = [_Table.of_run(finding, rows, MOVES), _Table.of_run(finding, others, FEWER)]
    fig, (upper, *lower) = _table_figure([table for table in tables if len(table.rows) > 1] or tables[:1], finding)
    upper.set(title="Runs that select only the decisive tokens")
    for ax in lower:
        ax.set(title=f"The same with {LENGTH} tokens a sequence")
    return fig


def _draw_short(finding: Finding) -> Figure:
    rows = [(f"{T} tokens, {k} decisive", (T, SHORT_WIDTH, k)) for T in SHORT_LENGTHS for k in SHORT_DECISIVE]
    fig, (ax,) = _table_figure([_Table.of_run(finding, rows, SHORT_MOVES)], finding)
    ax.set_title("Short sequences: runs that select only the decisive tokens")
    return fig


class _Table(NamedTuple):
    """Rows of cells, each a name and its (T, d, k), and columns, the moves of the first step."""

    rows: list[tuple[str, tuple[int, int, int]]]
    moves: list[float]

    @classmethod
    def of_run(cls, finding: Finding, rows: list[tuple[str, tuple[int, int, int]]], moves: tuple[float, ...]) -> _Table:
        """The rows and columns in which the run has a cell: one at reduced sizes has few."""
        cells = finding.arrays["cells"]
        kept = [row for row in rows if np.all(cells[:, :3] == row[1], axis=1).any()]
        measured = cells[np.isin(cells[:, :3], [key for _, key in kept]).all(axis=1), 3]
        return cls(kept, [moved for moved in moves if moved in measured])


def _table_figure(tables: list[_Table], finding: Finding) -> tuple[Figure, list[Axes]]:
    """A figure with the tables below each other, as high as they have rows, and their legend."""
    from matplotlib.figure import Figure

    n_rows = [len(table.rows) for table in tables]
    fig = Figure(figsize=(7.6, 0.42 * sum(n_rows) + 0.9 * len(tables) + 0.9), layout="constrained")
    axes = list(fig.subplots(len(tables), squeeze=False, height_ratios=n_rows).flat)
    for ax, table in zip(axes, tables, strict=True):
        _draw_table(ax, finding, table)
    _explain_cells(fig)
    return fig, axes


def _explain_cells(fig: Figure) -> None:
    """The legend of a table, below it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    failing, _, right = _SHARE_COLOURS
    marks = [
        Patch(color=right, label="every run ends as it should"),
        Patch(color=failing, label="none does"),
        Line2D([], [], color=ml.plotting.INK, lw=2.0, label="our test expects a lost class"),
        Line2D([], [], color=ml.plotting.INK, ls="", marker="$*$", label="a run fails, but loses no class"),
    ]
    fig.legend(handles=marks, loc="outside lower center", ncols=2)


def _draw_table(ax: Axes, finding: Finding, table: _Table) -> None:
    """How many runs end as they should in each setting, with a bar above if check_class_window warns."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    rows, moves = table
    colours = LinearSegmentedColormap.from_list("share", _SHARE_COLOURS)
    cells, right, lost, inside = (finding.arrays[name] for name in ("cells", "right", "lost", "inside"))
    for i, (_, key) in enumerate(rows):
        for j, moved in enumerate(moves):
            of_cell = np.all(cells[:, :3] == key, axis=1) & (cells[:, 3] == moved)
            if not of_cell.any():
                continue
            count, n = int(np.sum(right[of_cell])), int(of_cell.sum())
            ax.add_patch(
                Rectangle((j - 0.5, i - 0.5), 1.0, 1.0, facecolor=colours(count / n), edgecolor="white", lw=1.2)
            )
            star = "*" if np.any(~right[of_cell] & ~lost[of_cell]) else ""
            ax.text(j, i + 0.06, f"{count}/{n}{star}", ha="center", va="center")
            if inside[of_cell].any():
                ax.plot([j - 0.4, j + 0.4], [i - 0.36] * 2, color=ml.plotting.INK, lw=2.0, solid_capstyle="butt")
    ax.set_xticks(range(len(moves)), [f"{moved:.2g}" if moved < 100.0 else f"{moved:.0f}" for moved in moves])
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.set(xlim=(-0.5, len(moves) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.set_xlabel("how far the first step moves the scores of decisive tokens")
    ax.grid(False)


def _draw_flows(traces: list[dict[str, Any]]) -> Figure:
    fig, (left, right) = ml.plotting.figure(2, width=5.2, height=4.2)
    for trace, colour, style in zip(traces, ml.plotting.ACCENTS, ("-", "--", ":"), strict=False):
        label = f"η₀ = {trace['rate']:,.0f}"
        left.plot(trace["norm"], trace["along"] / trace["norm"], color=colour, ls=style, lw=2.0, label=label)
        for k in range(2):  # labels +1 and −1
            right.semilogy(
                trace["norm"],
                np.maximum(trace["attention"][k], 1e-18),
                color=colour,
                ls=style,
                lw=2.6 if k == 0 else 1.2,
            )
    for sign, width in (("+", 2.6), ("−", 1.2)):
        right.plot([], [], color=ml.plotting.INK, lw=width, label=f"label {sign}1")
    left.set(xscale="log", xlabel="‖p‖ along the flow", ylabel="⟨p, v⟩/‖p‖", title="p runs off along v")
    left.legend(loc="upper right")
    right.set(
        xscale="log", xlabel="‖p‖ along the flow", ylabel="attention on the decisive token, mean", ylim=(1e-18, 10.0)
    )
    right.set_title("and one class loses its token")
    right.legend(loc="lower left")
    return fig
