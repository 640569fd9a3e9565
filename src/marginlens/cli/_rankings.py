"""Rankings of tokens and scores of their predictions, as rows, on the terminal and in files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import marginlens as ml
from marginlens.cli import _rows, _terminal
from marginlens.cli._commands import typed_command
from marginlens.data.vocabulary import quoted
from marginlens.errors import InputError, reject
from marginlens.graphs.counting import count_windows
from marginlens.graphs.priority import component_order
from marginlens.runtime.files import write_whole

if TYPE_CHECKING:
    from marginlens.cli._sources import ListSource, TextSource
    from marginlens.data.sequences import SequenceDataset
    from marginlens.data.text_windows import SequenceSplit
    from marginlens.data.vocabulary import NamedSequences, Vocabulary
    from marginlens.graphs import PriorityGraph
    from marginlens.graphs.priority import Evidence
    from marginlens.svm import GraphSolution
    from marginlens.typing import IntArray

_SHOWN = 3  # last tokens that are shown unless chosen
_RANKING_LINES = 12  # components above others that the terminal lists for a last token, and
_LOWER = 12  # components below each; JSON has all
_MEMBERS = 40  # tokens of a component that the terminal lists
_MAX_COMPONENTS = 10_000  # up to which chains of rankings are followed: 200 MB
_DISTRIBUTION = 10  # next tokens that are listed
_GRAPH_PACKAGES = ("python", "marginlens", "numpy", "scipy")  # whose versions a saved file names


@dataclass(frozen=True, eq=False)
class Ranking:
    """The priority graphs of all sequences, and the last tokens whose graphs are shown.

    Attributes:
        counts: (n_vocabulary,) how many sequences end in each token. dropped: how many more lack the token that follows them.
        evidence: what stands behind the order of a graph, with `first` as places in the source. size: of all sequences, in words.
        named: the sequences, of a text those that fit in memory, or None if nothing needs them. split: the same beside what is held
            out. learned: the graphs of `named`, or all graphs if it is None. text: how many tokens and windows a text has.
    """

    source: TextSource | ListSource
    vocabulary: Vocabulary
    graphs: Mapping[int, PriorityGraph]
    counts: IntArray
    dropped: int
    n_acyclic: int
    shown: list[int]
    evidence: Callable[[PriorityGraph], Evidence]
    size: str
    named: NamedSequences | None
    split: SequenceSplit | None
    learned: Mapping[int, PriorityGraph]
    text: dict[str, Any] | None = None

    @classmethod
    def of_list(cls, source: ListSource, held_out: float | None, last: Sequence[str] | None) -> Ranking:
        """Rank the tokens; `last` names the last tokens to show, the most frequent ones by default."""
        read: Any = source.read(held_out)
        named, split = (read, None) if held_out is None else (read.training, read)
        data, graphs = named.data, ml.priority_graphs(named.data)
        counts = np.bincount(data.last, minlength=data.n_vocabulary)
        shown = shown_last_tokens(graphs, named.vocabulary.names, counts, last)
        places = data.original_samples() if split is None else split.samples

        def evidence(graph: PriorityGraph) -> Evidence:
            found = ml.graphs.ranking_evidence(data, graph)
            return replace(found, first=places[found.first])

        n_acyclic = sum(graph.is_acyclic for graph in graphs.values())
        sizes = (counts, len(data.dropped), n_acyclic, shown, evidence, _rows.size_of(data))
        return cls(source, named.vocabulary, graphs, *sizes, named, split, graphs)

    @classmethod
    def of_text(
        cls, source: TextSource, held_out: float | None, last: Sequence[str] | None, in_memory: bool
    ) -> Ranking:
        """Rank the tokens of a text; `in_memory` says whether something needs its sequences."""
        text, end = source.text, source.n_training(held_out)
        vocabulary = text.vocabulary
        read: Any = source.read_in_memory(held_out) if in_memory else None
        named, split = (read.training, read) if in_memory and held_out is not None else (read, None)
        counted = count_windows(text.chunks(0, end), source.window)
        graphs, counts = counted.graphs(), counted.ending_in(len(vocabulary))
        shown = shown_last_tokens(graphs, vocabulary.names, counts, last)
        size = _rows.sequences_size(
            int(counts.sum()), str(source.window), len(vocabulary), source.d_model or len(vocabulary)
        )
        fits = end <= source.n_in_memory
        row = {
            "tokens": end,
            "learned_tokens": min(end, source.n_in_memory) if in_memory else None,
            "windows": counted.n_windows,
        }

        def evidence(graph: PriorityGraph) -> Evidence:
            return ml.graphs.ranking_evidence(text.chunks(0, end), graph, window=source.window)

        n_acyclic = sum(graph.is_acyclic for graph in graphs.values())
        sizes = (counts, counted.n_dropped, n_acyclic, shown, evidence, size)
        learned = ml.priority_graphs(named.data) if in_memory and not fits else graphs
        return cls(source, vocabulary, graphs, *sizes, named, split, learned, row)

    def to_dict(self) -> dict[str, Any]:
        """What the graphs say, as plain values."""
        held_out = {} if self.split is None else {"held_out": {"sequences": len(self.split.held_out)}}
        graphs = [(self.graphs[k], int(self.counts[k])) for k in self.shown]
        return {
            "file": str(self.source.file),
            "size": self.size,
            "settings": self.source.settings(),
            "samples": int(self.counts.sum()),
            "dropped": self.dropped,
            **held_out,
            "last_tokens": len(self.graphs),
            "acyclic": self.n_acyclic,
            "graphs": [graph_row(graph, self.vocabulary.shown, n, self.evidence(graph)) for graph, n in graphs],
            **({} if self.text is None else {"text": self.text}),
        }


def fitted(
    data: SequenceDataset, graphs: Mapping[int, PriorityGraph], solution: GraphSolution
) -> tuple[ml.NextTokenAutomaton | None, str]:
    """The automaton of the data, given their Graph-SVM; or the sentence that says why there is none."""
    if solution.status is ml.Status.INFEASIBLE:
        return None, "There is no automaton, because the Graph-SVM of the data has no solution."
    try:
        return ml.NextTokenAutomaton.fit(data, graphs=graphs, priority=solution), ""
    except InputError as problem:
        return None, str(problem)


def prefix_ids(vocabulary: Vocabulary, text: str) -> IntArray:
    ids = vocabulary.encode(text, "prefix")
    if len(ids) == 0:
        raise reject("prefix", "at least one token", repr(text))
    return ids


def continued(
    ranking: Ranking, automaton: ml.NextTokenAutomaton, prefix: IntArray, n_tokens: int, seed: int
) -> dict[str, Any]:
    """What the automaton says follows a prefix, why, and how it goes on from there."""
    vocabulary, window = ranking.vocabulary, ranking.source.window
    sequence = prefix if window is None else prefix[-window:]
    probability = automaton.predict_proba(sequence, slow="limit")  # `explain` says if it is slow
    likely = [int(k) for k in np.argsort(-probability, kind="stable")[:_DISTRIBUTION] if probability[k] > 0.0]
    ids = automaton.sample(prefix, n_tokens, seed, window=window)
    return {
        "next": [{"token": vocabulary.shown[k], "probability": float(probability[k])} for k in likely],
        "explanation": str(automaton.explain(sequence, vocabulary.quoted)),
        "text": vocabulary.decode(ids),
        "whole": vocabulary.decode(np.concatenate([prefix, ids])),
    }


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
    reached = int(component_order(graph).reach.sum()) if followed else None
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


def ranking_text(row: dict[str, Any]) -> Iterator[Any]:
    """How many sequences there are and how many were left out, then the graph and the order of each shown last token."""
    dropped = row["dropped"]
    share = f" ({dropped / (dropped + row['samples']):.0%})" if dropped else ""
    left_out = _rows.left_out_sequences(dropped, share)
    n_held_out = row["held_out"]["sequences"] if "held_out" in row else None
    held_out = "" if n_held_out is None else f"{_terminal.counted(n_held_out, 'other is', 'others are')} held out. "
    yield f"{row['file']}: {row['size']}"
    yield (
        f"{left_out}{held_out}{_terminal.counted(row['last_tokens'], 'different last token')}, {row['acyclic']:,} of them without ties."
    )
    cells = []
    for graph in row["graphs"]:
        cells.append({**graph, "last": quoted(graph["last"]), "acyclic": "yes" if graph["acyclic"] else "no"})
        del cells[-1]["order"]
    yield _terminal.rows_table("Priorities by last token", cells)
    for graph in row["graphs"]:
        yield from _order_text(graph)
    text = row.get("text")
    if text is not None and (text["learned_tokens"] or np.inf) < text["tokens"]:
        learned = f"{text['learned_tokens']:,} of {text['tokens']:,} tokens"
        yield f"What follows is learned from the first {learned}, whose windows fit in memory."


def _order_text(row: dict[str, Any]) -> Iterator[Any]:
    """The components that sequences rank above others, with how many say so, and nothing that they do not say."""
    order, last = row["order"], quoted(row["last"])
    compared = order["compared"]
    total = len(order["equal"]) * (len(order["equal"]) - 1) // 2
    if not total:
        equal = f"all {row['tokens']:,} tokens are equal" if row["tokens"] > 1 else "there is one token"
        yield f"After {last} {equal}."
        return
    rest = f", {compared['not']:,} not at all" if compared["not"] else ""
    chains = f", {compared['through_chains']:,} through chains" if compared["through_chains"] else ""
    if compared["not"] is None:
        chains = f"; chains are not followed among more than {_MAX_COMPONENTS:,}"
    yield (
        f"After {last}, {compared['directly']:,} of {total:,} pairs of components are ranked by sequences{chains}{rest}. "
        "Above > below (sequences that say so):"
    )
    names = [quoted(members[0]) for members in order["equal"]]
    several = [part for part, members in enumerate(order["equal"]) if len(members) > 1]
    for number, part in enumerate(several, 1):
        members = order["equal"][part]
        names[part] = f"[{number}]"
        more = f" … {len(members):,} in all" if len(members) > _MEMBERS else ""
        equal = " ".join(map(quoted, members[:_MEMBERS]))
        yield _terminal.indented(f"[{number}] = {len(members):,} equal tokens: {equal}{more}")
    below: dict[int, list[tuple[int, int]]] = {}
    for pair in order["above"]:
        below.setdefault(pair["component"], []).append((pair["sequences"], pair["over"]))
    ranked = sorted(below.items(), key=lambda item: (-sum(times for times, _ in item[1]), item[0]))
    for upper, lower in ranked[:_RANKING_LINES]:
        lower.sort(key=lambda pair: (-pair[0], pair[1]))
        listed = "  ".join(f"{names[part]} ({times:,})" for times, part in lower[:_LOWER])
        more = f"  and {len(lower) - _LOWER:,} more" if len(lower) > _LOWER else ""
        yield _terminal.indented(f"{names[upper]} > {listed}{more}")
    if len(ranked) > _RANKING_LINES:
        more = f"and {len(ranked) - _RANKING_LINES:,} more components above others; --json lists them all."
        yield _terminal.indented(more)


def separability_text(row: dict[str, Any]) -> Iterator[str]:
    """Whether one W ranks all tokens so, and otherwise what is in conflict."""
    solved = "Graph-SVM of all last tokens: " if row["status"] else ""
    yield f"{solved}{row['meaning']} {row['proof']}"
    if "conflict" in row:
        yield row["conflict"]["sentence"]
        counts = [ranking["sequences"] for ranking in row["conflict"]["rankings"]]
        times = f"{counts[0]:,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"
        yield (
            f"Sequences that say so: {times} for each ranking. Linearly independent embeddings, such as one-hot ones, separate "
            "every order; --json lists the rows in conflict."
        )


def prediction_text(row: dict[str, Any]) -> Iterator[Any]:
    """How well each rule predicts what is held out, over the same sequences, and what these are of all."""
    some_unknown = any(score["unknown"] for score in row["scores"])
    mixed = f"log-loss at {row['mixed']:.0%} uniform"
    columns = "rule={rule}, accuracy={accuracy:.3f}, log-loss={log_loss:.3f}, "
    columns += f"{mixed}={{mixed_log_loss:.3f}}, impossible={{impossible:.2%}}"
    columns += ", unknown={unknown:.2%}" if some_unknown else ""
    columns += ", slow={slow:.2%}" if any(score["slow"] for score in row["scores"]) else ""
    cells = [_rows.cells(score, columns) for score in row["scores"]]
    title = f"Prediction of {_terminal.counted(row['scores'][0]['samples'], 'sequence')} held out"
    yield _terminal.rows_table(title, cells)
    yield (
        "Every rule chooses among the tokens of the sequence. impossible: the token that follows had probability zero, which makes the "
        f"log-loss infinite; in the column beside it {row['mixed']:.0%} of every rule is uniform over the sequence's tokens. N-grams back "
        "off by Witten and Bell; from trigrams on they read the order of tokens, which attention without positions does not."
    )
    if any(score["slow"] for score in row["scores"]):
        yield "slow: weights that grow only like the logarithm of the norm decide; only layers of enormous norm predict like the limit."
    first, left_out = row["scores"][0], row["left_out"]
    if left_out:
        share = left_out / (left_out + first["samples"])
        yield (
            f"{left_out:,} more ({share:.0%}) are left out because <unknown> follows them; a rule that predicts it elsewhere is wrong."
        )
    if row["windows"] is not None:
        known = " that a word of the vocabulary follows" if left_out else ""
        yield (
            f"Of all {row['windows']:,} windows held out{known}, {first['samples'] / row['windows']:.1%} hold the token that follows. "
            f"Of all, the {first['rule']} predicts {first['accuracy_of_all']:.1%}, and a bigram of the text that may choose any "
            f"token {row['free_bigram_accuracy']:.1%}."
        )


# ---- files


def draw(ranking: Ranking, place: Path) -> None:
    """Write the picture of the shown graphs."""
    from marginlens.plotting.files import write_figure

    shown = [ranking.graphs[k] for k in ranking.shown]
    write_figure(place, ml.plotting.draw_graphs(shown, ranking.vocabulary.shown))


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def save(ranking: Ranking, place: Path) -> None:
    """Write the shown graphs edge by edge, with what made them: settings, versions, the command and the file's fingerprint."""
    from marginlens.graphs.export import to_table
    from marginlens.runtime.versions import versions

    vocabulary, file = ranking.vocabulary, ranking.source.file
    facts = {
        "command": typed_command(),
        "file": file.name,
        "sha256": _sha256(file),
        "settings": ranking.source.settings(),
        "versions": {name: version for name, version in versions().items() if name in _GRAPH_PACKAGES},
        "samples": int(ranking.counts.sum()),
        "dropped": ranking.dropped,
        "vocabulary": list(vocabulary.names),
        "shown": list(vocabulary.shown),
    }

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    tables = [{**to_table(ranking.graphs[k]), "samples": int(ranking.counts[k])} for k in ranking.shown]
    graphs = ",\n".join(
        "{" + ",\n ".join(f'"{name}":{line(part)}' for name, part in table.items()) + "}" for table in tables
    )
    entries = [f'"{name}":{line(value)}' for name, value in facts.items()]
    text = (
        "{\n" + ",\n".join([*entries, f'"graphs":[\n{graphs}]']) + "\n}\n"
    )  # one line for each entry and part of a graph
    write_whole(place, text.encode(), "save")
