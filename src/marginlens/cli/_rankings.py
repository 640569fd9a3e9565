"""Rankings of tokens and scores of their predictions, as rows and on the terminal: of sequences in memory or of counted streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import marginlens as ml
from marginlens.cli import _rows, _terminal
from marginlens.data.vocabulary import quoted
from marginlens.errors import reject

if TYPE_CHECKING:
    from rich.console import Console

    from marginlens.graphs import PriorityGraph
    from marginlens.graphs.priority import Evidence
    from marginlens.typing import IntArray

_SHOWN = 3  # last tokens that are shown unless chosen
_RANKING_LINES = 12  # components above others that the terminal lists for a last token, and
_LOWER = 12  # components below each; JSON has all
_MEMBERS = 40  # tokens of a component that the terminal lists
_MAX_COMPONENTS = 10_000  # up to which chains of rankings are followed: 200 MB


# ---- rows


def shown_last_tokens(
    graphs: Mapping[int, PriorityGraph], names: Sequence[str], counts: IntArray, last: Sequence[str] | None
) -> list[int]:
    """The last tokens to show: those that are named, with or without signs for blanks, or the most frequent ones.

    Args:
        names: (n_vocabulary,) what the tokens are called. counts: (n_vocabulary,) how many sequences end in each.
    """
    if not last:
        frequent = np.argsort(-np.asarray(counts), kind="stable")
        return [int(k) for k in frequent if counts[k]][:_SHOWN]
    shown = ml.data.Vocabulary(tuple(names), ml.data.Characters()).shown
    known = {name: k for k, name in enumerate(shown)} | {name: k for k, name in enumerate(names)}
    for name in last:
        if name not in known:
            raise reject("last", f"one of the {len(names):,} tokens of the vocabulary", repr(name))
        if known[name] not in graphs:
            raise reject("last", "the last token of some sequence that holds the token which follows it", repr(name))
    return list(dict.fromkeys(known[name] for name in last))


def graph_row(graph: PriorityGraph, names: Sequence[str], n_samples: int, evidence: Evidence) -> dict[str, Any]:
    """The sizes of a graph, and its order: which components the sequences rank above which, and the pairs of tokens behind it.

    Args:
        names: (n_vocabulary,) what the tokens are called. n_samples: how many sequences end in the last token.
        evidence: of the graph, with `first` as places in the source.
    """
    sizes = np.bincount(graph.component_of).tolist()
    count, direct = graph.n_components * (graph.n_components - 1) // 2, len(evidence.components)
    followed = graph.n_components <= _MAX_COMPONENTS
    reached = int(ml.graphs.component_order(graph).reach.sum()) if followed else None
    first = evidence.first.tolist()
    return {
        "last": names[graph.last],
        "samples": n_samples,
        "tokens": len(graph.nodes),
        "components": graph.n_components,
        "largest_component": max(sizes),
        "strict_pairs": len(graph.strict),
        "tied_pairs": sum(size * (size - 1) // 2 for size in sizes),
        "acyclic": graph.is_acyclic,
        "order": {
            "equal": [[names[token] for token in part] for part in graph.components],
            "compared": {
                "directly": direct,
                "through_chains": None if reached is None else reached - direct,
                "not": None if reached is None else count - reached,
            },
            "above": [
                {"component": int(upper), "over": int(lower), "sequences": int(times)}
                for (upper, lower), times in zip(evidence.components.tolist(), evidence.component_samples, strict=True)
            ],
            "pairs": [
                {"above": names[i], "below": names[j], "sequences": int(times), "first": place}
                for (i, j), times, place in zip(evidence.pairs.tolist(), evidence.samples, first, strict=True)
            ],
        },
    }


# ---- the terminal


def show_rankings(out: Console, row: dict[str, Any]) -> None:
    """Print how many sequences there are and how many were left out, then the graph and the order of each shown last token."""
    dropped = row["dropped"]
    share = f" ({dropped / (dropped + row['samples']):.0%})" if dropped else ""
    left_out = _rows.left_out_sequences(dropped, share)
    held_out = f"{_terminal.counted(row['held_out'], 'other is', 'others are')} held out. " if "held_out" in row else ""
    out.print(f"{row['file']}: {row['size']}", markup=False)
    out.print(
        f"{left_out}{held_out}{_terminal.counted(row['last_tokens'], 'different last token')}, {row['acyclic']:,} of them without ties.",
        markup=False,
    )
    cells = []
    for graph in row["graphs"]:
        cells.append({**graph, "last": quoted(graph["last"]), "acyclic": "yes" if graph["acyclic"] else "no"})
        del cells[-1]["order"]
    out.print(_terminal.rows_table("Priorities by last token", cells))
    for graph in row["graphs"]:
        _show_order(out, graph)


def _show_order(out: Console, row: dict[str, Any]) -> None:
    """The components that sequences rank above others, with how many say so, and nothing that they do not say."""
    order, last = row["order"], quoted(row["last"])
    compared = order["compared"]
    total = len(order["equal"]) * (len(order["equal"]) - 1) // 2
    if not total:
        equal = f"all {row['tokens']:,} tokens are equal" if row["tokens"] > 1 else "there is one token"
        out.print(f"After {last} {equal}.", markup=False)
        return
    rest = f", {compared['not']:,} not at all" if compared["not"] else ""
    chains = f", {compared['through_chains']:,} through chains" if compared["through_chains"] else ""
    if compared["not"] is None:
        chains = f"; chains are not followed among more than {_MAX_COMPONENTS:,}"
    out.print(
        f"After {last}, {compared['directly']:,} of {total:,} pairs of components are ranked by sequences{chains}{rest}. "
        "Above > below (sequences that say so):",
        markup=False,
    )
    names = [quoted(members[0]) for members in order["equal"]]
    several = [part for part, members in enumerate(order["equal"]) if len(members) > 1]
    for number, part in enumerate(several, 1):
        members = order["equal"][part]
        names[part] = f"[{number}]"
        more = f" … {len(members):,} in all" if len(members) > _MEMBERS else ""
        equal = " ".join(map(quoted, members[:_MEMBERS]))
        _rows.show_indented(out, f"[{number}] = {len(members):,} equal tokens: {equal}{more}")
    below: dict[int, list[tuple[int, int]]] = {}
    for pair in order["above"]:
        below.setdefault(pair["component"], []).append((pair["sequences"], pair["over"]))
    ranked = sorted(below.items(), key=lambda item: (-sum(times for times, _ in item[1]), item[0]))
    for upper, lower in ranked[:_RANKING_LINES]:
        lower.sort(key=lambda pair: (-pair[0], pair[1]))
        listed = "  ".join(f"{names[part]} ({times:,})" for times, part in lower[:_LOWER])
        more = f"  and {len(lower) - _LOWER:,} more" if len(lower) > _LOWER else ""
        _rows.show_indented(out, f"{names[upper]} > {listed}{more}")
    if len(ranked) > _RANKING_LINES:
        more = f"and {len(ranked) - _RANKING_LINES:,} more components above others; --json lists them all."
        _rows.show_indented(out, more)


def show_separability(out: Console, row: dict[str, Any]) -> None:
    """Print whether one W ranks all tokens so, and otherwise what is in conflict."""
    solved = "Graph-SVM of all last tokens: " if row["status"] else ""
    out.print(f"{solved}{row['meaning']} {row['proof']}", markup=False)
    if "conflict" in row:
        out.print(row["conflict"]["sentence"], markup=False)
        counts = [ranking["sequences"] for ranking in row["conflict"]["rankings"]]
        times = f"{counts[0]:,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        out.print(
            f"Sequences that say so: {times} for each ranking. Linearly independent embeddings, such as one-hot ones, separate "
            "every order; --json lists the rows in conflict.",
            markup=False,
        )


def show_prediction(out: Console, row: dict[str, Any]) -> None:
    """Print how well each rule predicts what is held out, over the same sequences, and what these are of all."""
    some_unknown = any(score["unknown"] for score in row["scores"])
    mixed = f"log-loss, {row['mixed']:.0%} uniform"
    cells = [
        {
            "rule": score["rule"],
            "accuracy": f"{score['accuracy']:.3f}",
            "log-loss": _rows.number(score["log_loss"]) if np.isinf(score["log_loss"]) else f"{score['log_loss']:.3f}",
            mixed: f"{score['mixed_log_loss']:.3f}",
            "impossible": f"{score['impossible']:.2%}",
            **({"unknown": f"{score['unknown']:.2%}"} if some_unknown else {}),
        }
        for score in row["scores"]
    ]
    title = f"Prediction of {_terminal.counted(row['scores'][0]['samples'], 'sequence')} held out"
    out.print(_terminal.rows_table(title, cells))
    out.print(
        "Every rule chooses among the tokens of the sequence. impossible: the token that follows had probability zero, which makes the "
        f"log-loss infinite; in the column beside it {row['mixed']:.0%} of every rule is uniform over the sequence's tokens. N-grams back "
        "off by Witten and Bell; from trigrams on they read the order of tokens, which attention without positions does not.",
        markup=False,
    )
    first, left_out = row["scores"][0], row["left_out"]
    if left_out:
        share = left_out / (left_out + first["samples"])
        out.print(
            f"{left_out:,} more ({share:.0%}) are left out because <unknown> follows them; a rule that predicts it elsewhere is wrong.",
            markup=False,
        )
    if row["windows"] is not None:
        known = " that a word of the vocabulary follows" if left_out else ""
        out.print(
            f"Of all {row['windows']:,} windows held out{known}, {first['samples'] / row['windows']:.1%} hold the token that follows. "
            f"Of all, the {first['rule']} predicts {first['accuracy_of_all']:.1%}, and a bigram of the text that may choose any "
            f"token {row['free_bigram_accuracy']:.1%}.",
            markup=False,
        )
