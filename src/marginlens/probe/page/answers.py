"""Pruning advice: which heads can go, where the sinks are, how sparse attention can be made."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.probe.result import NEGLIGIBLE, ProbeResult
from marginlens.result import counted
from marginlens.typing import FloatArray

SINK_SHARE = 0.3  # of all attention, from which on the most attended token of an input is called a sink
ABLATION_ARGUMENT = "ProbeSettings(ablation=True)"  # how Python asks for the change of the output
_N_HEADS = 4  # that an answer names
_OUTPUT = ("output_divergence", "output_change")  # what silencing a head measures, the better one first


class NamedHead(NamedTuple):
    """A head, with a number or a word about it."""

    name: str
    address: str  # of its part of the page
    says: str


class Answer(NamedTuple):
    """A question, a sentence, a table, and heads to look at."""

    question: str
    sentence: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    named: str = ""  # what the heads below are
    heads: tuple[NamedHead, ...] = ()
    note: str = ""  # how the numbers are meant


def answers(result: ProbeResult) -> tuple[Answer, ...]:
    """What was measured of the three questions."""
    return tuple(answer for answer in (_pruning(result), _sinks(result), _sparsity(result)) if answer)


def not_asked(result: ProbeResult, ablation_option: str = ABLATION_ARGUMENT) -> tuple[str, ...]:
    """How to ask which heads can be pruned, by this option or argument, where that was not measured."""
    if any(name in result.measures for name in _OUTPUT):
        return ()
    how = f"{ablation_option} silences every head in turn and measures how the output changes"
    if result.weights_missing:
        how = "to silence a head takes an adapter for the model's family"
    return (f"Which heads can be pruned was not asked: {how}.",)


def _pruning(result: ProbeResult) -> Answer | None:
    question = "Which heads can be pruned?"
    name = next((name for name in _OUTPUT if name in result.measures), None)
    if name is None:
        return None
    values = result[name]

    def number(value: float) -> str:
        return f"{value:.2g} nats" if name == "output_divergence" else _percent(value)

    order = [divmod(int(k), values.shape[1]) for k in np.argsort(values, axis=None) if np.isfinite(values.flat[k])]
    what = "The output distribution diverges" if name == "output_divergence" else "The last hidden states change"
    first, last = order[0], order[-1]
    rows = tuple(
        (f"{len(row.heads)} of {len(order)} ({len(row.heads) / len(order):.0%})", number(row.change))
        for row in result.pruned
    )
    return Answer(
        question,
        f"{what} by {number(values[first])} without {result.head_name(*first)}, the least missed head, and by {number(values[last])} "
        f"without {result.head_name(*last)}, the most missed one.",
        ("least missed heads, silenced together", "change of the output"),
        rows,
        "Least missed",
        tuple(_named(result, at, number(values[at])) for at in order[:_N_HEADS]),
        "Kullback-Leibler divergence of the output, mean over tokens or inputs."
        if name == "output_divergence"
        else "Distance of the last hidden states over their length, mean over tokens.",
    )


def _sinks(result: ProbeResult) -> Answer | None:
    question = "Where are the sinks?"
    share = result.measures.get("sink_share", np.empty(0))
    if not np.isfinite(share).any():
        return None
    n_sinks = int(np.sum(np.nan_to_num(share) >= SINK_SHARE))
    known = counted(int(np.isfinite(share).sum()), "head")
    said = f"In {n_sinks} of {known} one token of an input gets {SINK_SHARE:.0%} or more of all attention."
    rows = tuple((name, _percent(part), _percent(expected)) for name, part, expected in result.sinks)
    strongest = sorted(result.head_sinks.items(), key=lambda item: item[1].expected - item[1].share)[:_N_HEADS]
    heads = tuple(_named(result, at, f"{row.name}, {_percent(row.share)}") for at, row in strongest)
    note = (
        "Attention over all heads, beside what a token would get if all that queries see had the same." if rows else ""
    )
    if not heads:  # names of tokens are not known, or none has more than its part
        order = [at for at in _descending(share) if share[at] >= SINK_SHARE][:_N_HEADS]
        heads = tuple(_named(result, at, _percent(share[at])) for at in order)
    return Answer(question, said, ("token", "attention", "if even") if rows else (), rows, "Strongest", heads, note)


def _sparsity(result: ProbeResult) -> Answer | None:
    question = "How sparse can attention be made?"
    known = {error: result.measures.get(name, np.empty(0)) for error, name in NEGLIGIBLE.items()}
    known = {error: share for error, share in known.items() if np.isfinite(share).any()}
    if not known:
        return None
    rows = tuple(
        (
            f"{error:g}",
            _percent(float(np.nanmean(share))),
            f"{_percent(float(np.nanmin(share)))} to {_percent(float(np.nanmax(share)))}",
            f"{int(np.sum(np.nan_to_num(share) >= 0.5))} of {int(np.isfinite(share).sum())}",
        )
        for error, share in known.items()
    )
    error, share = next(iter(known.items()))
    most = _descending(share)[:_N_HEADS]
    return Answer(
        question,
        f"Of the {result.mean_tokens:.1f} tokens that a query sees on average, {_percent(float(np.nanmean(share)))} can be left out at "
        f"an error of {error:g}.",
        ("error", "left out, mean", "by head", "heads with half"),
        rows,
        f"Most at {error:g}",
        tuple(_named(result, at, _percent(share[at])) for at in most),
        "The error is the total variation between the attention and what is left of it, at every query; exact.",
    )


def _named(result: ProbeResult, at: tuple[int, int], says: str) -> NamedHead:
    return NamedHead(result.head_name(*at), f"#L{at[0]}H{at[1]}", says)


def _descending(values: FloatArray) -> list[tuple[int, int]]:
    """Layer and head of every number, the largest first."""
    order = np.argsort(-values, axis=None, kind="stable")
    return [divmod(int(k), values.shape[1]) for k in order if np.isfinite(values.flat[k])]


def _percent(share: float) -> str:
    """Whole percent, with a digit more where that would say all or nothing of what is not."""
    return f"{share:.0%}" if share in (0.0, 1.0) or 0.095 <= share < 0.995 else f"{share:.1%}"
