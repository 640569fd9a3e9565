"""Rankings of the tokens of a text or of listed sequences, by last token."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import marginlens as ml
from marginlens.data.files import read_sequences
from marginlens.data.text_windows import embeddings, held_out_share, split_ids, split_sequences, windows_of
from marginlens.data.tokenizer import read_tokenizer
from marginlens.data.vocabulary import NamedSequences
from marginlens.errors import InputError, rename_arguments
from marginlens.graphs.counting import count_windows
from marginlens.graphs.description import describe_order
from marginlens.graphs.priority import component_order
from marginlens.runtime.files import write_whole
from marginlens.words import text

if TYPE_CHECKING:
    from marginlens.cli.graph import TextCut
    from marginlens.data.text_windows import SequenceSplit
    from marginlens.data.vocabulary import Vocabulary
    from marginlens.graphs import PriorityGraph
    from marginlens.graphs.priority import Evidence
    from marginlens.svm import GraphSolution
    from marginlens.typing import IntArray

# Tokens of all windows that are made at once; a dataset has 256 MB of them, several times.
MAX_POSITIONS_IN_MEMORY = 1 << 25
# Last tokens that are shown by default.
N_SHOWN = 3
# Chains of rankings are followed through no more components than this, which takes 200 MB.
MAX_COMPONENTS = 10_000
# Packages whose versions a saved file names.
GRAPH_PACKAGES = ("python", "marginlens", "numpy", "scipy")


@dataclass(frozen=True, eq=False)
class Ranking:
    """The priority graphs of all sequences, and the last tokens whose graphs are shown.

    Attributes:
        file: the text, or the list of sequences.

        settings: the settings of reading, besides the file.

        vocabulary: the vocabulary of the sequences.

        graphs: the priority graphs of all sequences by last token.

        counts: (n_vocabulary,) the number of sequences that end in each token.

        n_dropped: the number of other sequences, which lack their next token.

        shown: the last tokens whose graphs are shown.

        evidence: a function that returns the evidence of a graph; its `first` counts from the beginning of the file.

        size: the size of the data: sequences, length, tokens of the vocabulary, d_model.

        window: the number of tokens in a window of a text; None for listed sequences.

        named: the sequences, or those of a text that fit in memory; None if nothing needs them.

        split: the training and held-out sequences; None if nothing is held out.

        learned: the graphs of `named`, or all graphs.

        text: the tokens and windows of a text; None for listed sequences.
    """

    file: Path
    settings: dict[str, Any]
    vocabulary: Vocabulary
    graphs: Mapping[int, PriorityGraph]
    counts: IntArray
    n_dropped: int
    shown: list[int]
    evidence: Callable[[PriorityGraph], Evidence]
    size: dict[str, Any]
    window: int | None
    named: NamedSequences | None
    split: SequenceSplit | None
    learned: Mapping[int, PriorityGraph]
    text: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the shown graphs as plain values."""
        held_out = {} if self.split is None else {"held_out": {"sequences": len(self.split.held_out)}}
        return {
            "file": str(self.file),
            "size": self.size,
            "settings": self.settings,
            "samples": int(self.counts.sum()),
            "dropped": self.n_dropped,
            **held_out,
            "last_tokens": len(self.graphs),
            "acyclic": sum(graph.is_acyclic for graph in self.graphs.values()),
            "graphs": [self._graph_row(k) for k in self.shown],
            **({} if self.text is None else {"text": self.text}),
        }

    def _graph_row(self, last: int) -> dict[str, Any]:
        """Return the sizes of a graph and its order: the components that sequences rank above others, and the pairs of tokens behind it."""
        graph, names = self.graphs[last], self.vocabulary.shown
        evidence = self.evidence(graph)
        sizes = np.bincount(graph.component_of)
        count, direct = graph.n_components * (graph.n_components - 1) // 2, len(evidence.components)
        reached = None
        if graph.n_components <= MAX_COMPONENTS:
            reached = int(component_order(graph).reach.sum())
        pairs = zip(evidence.pairs.tolist(), evidence.samples.tolist(), evidence.first.tolist(), strict=True)
        above = zip(evidence.components.tolist(), evidence.component_samples.tolist(), strict=True)
        return {
            "last": names[graph.last],
            "samples": int(self.counts[last]),
            "tokens": len(graph.nodes),
            "components": graph.n_components,
            "largest_component": int(sizes.max()),
            "strict_pairs": len(graph.strict),
            "tied_pairs": int(np.sum(sizes * (sizes - 1) // 2)),
            "acyclic": graph.is_acyclic,
            "order": {
                "equal": [[names[token] for token in part] for part in graph.components],
                "compared": {
                    "directly": direct,
                    "through_chains": None if reached is None else reached - direct,
                    "not": None if reached is None else count - reached,
                },
                "above": [{"component": i, "over": j, "sequences": times} for (i, j), times in above],
                "pairs": [
                    {"above": names[i], "below": names[j], "sequences": times, "first": first}
                    for (i, j), times, first in pairs
                ],
            },
        }

    def lines(self, row: dict[str, Any]) -> Iterator[str]:
        """Return the text of `row`: the numbers of sequences and of left-out ones, then the order after each shown last token."""
        yield text("cli.graph.size", file=str(self.file), **self.size)
        counts = [text("cli.graph.counts", count=len(self.graphs), acyclic=row["acyclic"])]
        if self.split is not None:
            counts.insert(0, text("cli.graph.held_out", count=len(self.split.held_out)))
        if self.n_dropped:
            share = self.n_dropped / (self.n_dropped + row["samples"])
            counts.insert(0, text("cli.graph.dropped", count=self.n_dropped, share=share))
        yield " ".join(counts)
        for graph in row["graphs"]:
            yield from describe_order(graph["last"], graph["order"])
        if self.text is not None and self.text["learned_tokens"] not in (None, self.text["tokens"]):
            yield text("cli.graph.learned", learned=self.text["learned_tokens"], tokens=self.text["tokens"])

    def separability(self, solution: GraphSolution | None) -> tuple[dict[str, Any], list[str]]:
        """Return whether one W ranks all tokens after all last tokens as the graphs do, in numbers and sentences.

        Args:
            solution: the Graph-SVM of the graphs; None for one-hot tokens, which separate every order.
        """
        names = ("status", "margin", "residual", "smallest_gap")
        n_strict = sum(len(graph.strict) for graph in self.learned.values())
        row: dict[str, Any] = {"separable": True, **dict.fromkeys(names), "strict_pairs": n_strict}
        if solution is None:
            return row, [text("cli.graph.one_hot")]
        infeasible, margin = solution.status is ml.Status.INFEASIBLE, float(solution.margin)
        residual = float(solution.certificate_residual() if infeasible else solution.kkt_residual())
        # (e_i - e_j)ᵀ W e_k over all pairs i ⇒ j of all last tokens k.
        gaps = solution.rows.apply(solution.x.reshape(-1))
        smallest = None if infeasible or not len(gaps) else float(gaps.min())
        is_solved = solution.status in (ml.Status.OPTIMAL, ml.Status.TRIVIAL)
        row |= dict(zip(names, (solution.status.name, margin, residual, smallest), strict=True))
        row["separable"] = is_solved
        sentences = [text("cli.graph.solved", status=solution.status.sentence, residual=residual)]
        # W^mm has gaps of at least 1, so log 99 times W^mm is the shortest W that ranks 99 to 1.
        if 0.0 < margin < np.inf:
            sentences.append(text("cli.graph.margin", margin=margin, norm=float(np.log(99.0)) / margin))
        if infeasible and self.named is not None:
            conflict = ml.svm.graph_conflict(solution)
            row["conflict"] = conflict.to_dict(self.vocabulary.shown)
            evidence = {k: ml.graphs.ranking_evidence(self.named.data, self.learned[k]) for k in conflict.last_tokens}
            for ranking, (k, i, j) in zip(row["conflict"]["rankings"], conflict.pairs.tolist(), strict=True):
                is_pair = (evidence[k].pairs == [i, j]).all(axis=1)
                ranking["sequences"] = int(evidence[k].samples[is_pair].sum())
            sentences.append(conflict.describe(self.vocabulary.quoted))
            sentences.append(text("cli.graph.independent"))
        return row, sentences

    def draw(self, path: Path) -> None:
        """Write the picture of the shown graphs."""
        from marginlens.plotting.files import write_figure

        shown = [self.graphs[k] for k in self.shown]
        write_figure(path, ml.plotting.draw_graphs(shown, self.vocabulary.shown))

    def save(self, path: Path, command: str) -> None:
        """Write the shown graphs edge by edge, with settings, versions, the command and the file's fingerprint."""
        from marginlens.graphs.export import to_table
        from marginlens.runtime.versions import versions

        with self.file.open("rb") as content:
            fingerprint = hashlib.file_digest(content, "sha256").hexdigest()
        facts = {
            "command": command,
            "file": self.file.name,
            "sha256": fingerprint,
            "settings": self.settings,
            "versions": {name: version for name, version in versions().items() if name in GRAPH_PACKAGES},
            "samples": int(self.counts.sum()),
            "dropped": self.n_dropped,
            "vocabulary": list(self.vocabulary.names),
            "shown": list(self.vocabulary.shown),
            "graphs": [{**to_table(self.graphs[k]), "samples": int(self.counts[k])} for k in self.shown],
        }
        write_whole(path, (json.dumps(facts, ensure_ascii=False) + "\n").encode(), "save")


def rank_list(file: Path, last: Sequence[str] | None, held_out: float | None, *, drop: bool, seed: int) -> Ranking:
    """Rank the tokens of listed sequences; `last` names the last tokens to show, the most frequent by default."""
    named, split = read_sequences(file, unrealizable="drop" if drop else "refuse"), None
    if held_out is not None:
        split = split_sequences(named, held_out=held_out, rng=seed)
        named = split.training
    data, graphs = named.data, ml.priority_graphs(named.data)
    counts = np.bincount(data.last, minlength=data.n_vocabulary)
    original = data.original_samples() if split is None else split.samples

    def evidence(graph: PriorityGraph) -> Evidence:
        of_data = ml.graphs.ranking_evidence(data, graph)
        return replace(of_data, first=original[of_data.first])

    ragged = "" if np.ptp(data.lengths) == 0 else "up to "
    return Ranking(
        file=file,
        settings={"tokens": "listed", "unrealizable": "drop" if drop else "refuse"},
        vocabulary=named.vocabulary,
        graphs=graphs,
        counts=counts,
        n_dropped=len(data.dropped),
        shown=_shown_last_tokens(graphs, named.vocabulary, counts, last),
        evidence=evidence,
        size=_size(len(data), f"{ragged}{data.lengths.max()}", data.n_vocabulary, data.d_model),
        window=None,
        named=named,
        split=split,
        learned=graphs,
    )


def rank_text(
    file: Path, last: Sequence[str] | None, held_out: float | None, cut: TextCut, *, in_memory: bool
) -> Ranking:
    """Rank the tokens of a text of any length.

    Args:
        file: the text.

        last: the last tokens to show; the most frequent ones by default.

        held_out: the share of the text that is held out.

        cut: the options for cutting the text.

        in_memory: whether the windows themselves are needed, as many as fit in memory.
    """
    window, d_model, seed = cut.n_window, cut.d_model, cut.seed
    unit, units = _unit_of(cut)
    source = ml.data.TextTokens(file, unit, encoding=cut.encoding or "utf-8")
    share = 0.0 if held_out is None else held_out_share(held_out)
    end, most = len(source) - round(share * len(source)), max(MAX_POSITIONS_IN_MEMORY // window, window + 1)
    vocabulary, named, split = source.vocabulary, None, None
    if in_memory:
        E, first = embeddings(len(vocabulary), d_model, seed), source.read(0, min(end, most))
        if held_out is None:
            named = NamedSequences(windows_of(first, window, E), vocabulary)
        else:
            split = split_ids(first, source.read(end, min(len(source), end + most)), window, vocabulary, E)
            named = split.training
    windows = count_windows(source.chunks(0, end), window)
    graphs, counts = windows.graphs(), windows.ending_in(len(vocabulary))
    width = "one-hot" if d_model is None else f"{d_model} random coordinates, seed {seed}"
    return Ranking(
        file=file,
        settings={"tokens": units, "window": window, "embeddings": width},
        vocabulary=vocabulary,
        graphs=graphs,
        counts=counts,
        n_dropped=windows.n_dropped,
        shown=_shown_last_tokens(graphs, vocabulary, counts, last),
        evidence=lambda graph: ml.graphs.ranking_evidence(source.chunks(0, end), graph, window=window),
        size=_size(int(counts.sum()), str(window), len(vocabulary), d_model or len(vocabulary)),
        window=window,
        named=named,
        split=split,
        learned=graphs if named is None or end <= most else ml.priority_graphs(named.data),
        text={"tokens": end, "learned_tokens": min(end, most) if in_memory else None, "windows": windows.n_windows},
    )


def _unit_of(cut: TextCut) -> tuple[Any, str]:
    """Return what cuts the text into tokens, and its name."""
    if cut.tokenizer is not None:
        with rename_arguments(path="tokenizer"):
            return read_tokenizer(cut.tokenizer), f"tokenizer {cut.tokenizer.name}"
    if not cut.words:
        return ml.data.Characters(), "characters"
    return ml.data.Words(max_vocabulary=cut.n_words), f"words, {cut.n_words} at most"


def _size(count: int, length: str, n_vocabulary: int, d_model: int) -> dict[str, Any]:
    return {"sequences": count, "length": length, "tokens": n_vocabulary, "d_model": d_model}


def _shown_last_tokens(
    graphs: Mapping[int, PriorityGraph], vocabulary: Vocabulary, counts: IntArray, last: Sequence[str] | None
) -> list[int]:
    """Return the last tokens to show: those that are named, with or without signs for blanks, or the most frequent ones."""
    if not last:
        frequent = np.argsort(-counts, kind="stable")
        return [int(k) for k in frequent if counts[k]][:N_SHOWN]
    ids = {name: k for names in (vocabulary.shown, vocabulary.names) for k, name in enumerate(names)}
    for name in last:
        if name not in ids:
            raise InputError("last", f"one of the {len(vocabulary):,} tokens of the vocabulary", repr(name))
        if ids[name] not in graphs:
            raise InputError(
                "last", "the last token of some sequence that holds the token which follows it", repr(name)
            )
    return list(dict.fromkeys(ids[name] for name in last))
