"""The answers of `marginlens graph` as plain rows, its picture, and the table that keeps its graphs."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.cli.graph_sources import Source
from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_windows import SequenceSplit
from marginlens.data.tokens import IntArray
from marginlens.data.vocabulary import NamedSequences, Vocabulary
from marginlens.errors import InputError, reject, whole_number
from marginlens.graphs import PriorityGraph, component_order, priority_graphs, ranking_evidence
from marginlens.graphs.export import to_table
from marginlens.nexttoken.automaton import NextTokenAutomaton
from marginlens.nexttoken.scores import WindowBigram
from marginlens.runtime.files import write_whole
from marginlens.svm import GraphSolution, Status, graph_conflict

_SHOWN = 3  # last tokens that are shown unless chosen
_PACKAGES = ("python", "marginlens", "numpy", "scipy")
_DISTRIBUTION = 10  # next tokens that are listed


@dataclass(frozen=True, eq=False)
class Answer:
    """The graphs of a file, and which of them are shown."""

    file: Path
    source: Source
    found: NamedSequences
    graphs: dict[int, PriorityGraph]
    shown: list[int]
    split: SequenceSplit | None = None

    @classmethod
    def of(
        cls, file: Path, source: Source, found: NamedSequences | SequenceSplit, last: Sequence[str] | None
    ) -> Answer:
        """Rank the tokens; `last` names the last tokens to show, the most frequent ones by default."""
        split = found if isinstance(found, SequenceSplit) else None
        named = found.training if isinstance(found, SequenceSplit) else found
        graphs = priority_graphs(named.data)
        counts = np.bincount(named.data.last, minlength=named.data.n_vocabulary)
        frequent = [int(k) for k in np.argsort(-counts, kind="stable") if counts[k]]
        shown = (
            frequent[:_SHOWN]
            if not last
            else list(dict.fromkeys(_last(name, named.vocabulary, graphs) for name in last))
        )
        return cls(file, source, named, graphs, shown, split)

    def rankings(self) -> dict[str, Any]:
        """What the graphs say, as plain values."""
        data = self.found.data
        held_out = {} if self.split is None else {"held_out": len(self.split.held_out)}
        return {
            "file": str(self.file),
            "size": size_of(data),
            "settings": self.source.settings(),
            "samples": len(data),
            "dropped": len(data.dropped),
            **held_out,
            "last_tokens": len(self.graphs),
            "acyclic": sum(graph.is_acyclic for graph in self.graphs.values()),
            "graphs": [self._row(k) for k in self.shown],
        }

    def _row(self, last: int) -> dict[str, Any]:
        graph, names = self.graphs[last], self.found.vocabulary.shown
        sizes = [len(part) for part in graph.components]
        return {
            "last": names[last],
            "samples": int(np.sum(self.found.data.last == last)),
            "tokens": len(graph.nodes),
            "components": graph.n_components,
            "largest_component": max(sizes),
            "strict_pairs": len(graph.strict),
            "tied_pairs": sum(size * (size - 1) // 2 for size in sizes),
            "acyclic": graph.is_acyclic,
            "order": self._order(graph, names),
        }

    def _order(self, graph: PriorityGraph, names: Sequence[str]) -> dict[str, Any]:
        """Which components the sequences rank above which, how many say so, and the pairs of tokens behind it."""
        data = self.found.data
        evidence, order = ranking_evidence(data, graph), component_order(graph)
        original = data.original_samples() if self.split is None else self.split.samples
        count = graph.n_components * (graph.n_components - 1) // 2
        direct, reached = int(order.direct.sum()), int(order.reach.sum())
        return {
            "equal": [[names[token] for token in part] for part in graph.components],
            "compared": {"directly": direct, "through_chains": reached - direct, "not": count - reached},
            "above": [
                {"component": int(upper), "over": int(lower), "sequences": int(times)}
                for (upper, lower), times in zip(evidence.components.tolist(), evidence.component_samples, strict=True)
            ],
            "pairs": [
                {"above": names[i], "below": names[j], "sequences": int(times), "first": int(original[first])}
                for (i, j), times, first in zip(evidence.pairs.tolist(), evidence.samples, evidence.first, strict=True)
            ],
        }


def _last(name: str, vocabulary: Vocabulary, graphs: Mapping[int, PriorityGraph]) -> int:
    """The id of a last token given by its name, or by the sign that stands for it."""
    known = {
        **{sign: k for k, sign in enumerate(vocabulary.shown)},
        **{one: k for k, one in enumerate(vocabulary.names)},
    }
    if name not in known:
        raise reject("last", f"one of the {len(vocabulary)} tokens of the vocabulary", repr(name))
    if known[name] not in graphs:
        raise reject("last", "the last token of some sequence that holds the token which follows it", repr(name))
    return known[name]


def size_of(data: SequenceDataset) -> str:
    """The size of a dataset in words."""
    upto = "" if np.ptp(data.lengths) == 0 else "up to "
    counted = f"{len(data)} sequences of {upto}{int(data.lengths.max())}"
    return f"{counted} over {data.n_vocabulary} tokens, d_model = {data.d_model}"


def separability(found: NamedSequences, graphs: Mapping[int, PriorityGraph], solution: GraphSolution) -> dict[str, Any]:
    """Whether one W ranks all tokens of all last tokens as the graphs say, and if not, which tokens are in conflict."""
    infeasible = solution.status is Status.INFEASIBLE
    residual = float(solution.certificate_residual() if infeasible else solution.kkt_residual())
    row: dict[str, Any] = {
        "separable": solution.status in (Status.OPTIMAL, Status.TRIVIAL),
        "status": solution.status.name,
        "meaning": solution.status.value,
        "margin": float(solution.margin),
        "residual": residual,
        "smallest_gap": None if infeasible else _smallest_gap(solution),
        "strict_pairs": sum(len(graph.strict) for graph in graphs.values()),
        "proof": f"Farkas residual {residual:.1g}."
        if infeasible
        else f"Margin {solution.margin:.4g}, KKT residual {residual:.1g}.",
    }
    if infeasible:
        row["conflict"] = _conflict(found, graphs, solution)
    return row


def _conflict(found: NamedSequences, graphs: Mapping[int, PriorityGraph], solution: GraphSolution) -> dict[str, Any]:
    """The tokens that contradict each other, with the sequences that rank them so."""
    conflict, data = graph_conflict(solution), found.data
    row = conflict.to_dict(found.vocabulary.shown)
    evidence = {k: ranking_evidence(data, graphs[k]) for k in conflict.last_tokens}
    for ranking, (k, i, j) in zip(row["rankings"], conflict.pairs.tolist(), strict=True):
        place = np.flatnonzero((evidence[k].pairs == [i, j]).all(axis=1))
        ranking["sequences"] = int(evidence[k].samples[place].sum())
    return {**row, "sentence": conflict.describe(found.vocabulary.quoted)}


def _smallest_gap(solution: GraphSolution) -> float | None:
    """The smallest (e_i - e_j)ᵀ W e_k over all pairs i ⇒ j of all last tokens k; None where nothing is strict."""
    gaps = solution.rows.apply(solution.x.reshape(-1))
    return float(gaps.min()) if len(gaps) else None


# ---- the automaton


def prediction_rows(split: SequenceSplit, automaton: NextTokenAutomaton) -> list[dict[str, Any]]:
    """How well the automaton predicts what is held out, beside bigrams that may choose among the same tokens."""
    training = split.training.data
    rules: dict[str, NextTokenAutomaton | WindowBigram] = {
        "automaton": automaton,
        "bigram of the same windows": WindowBigram.fit(training),
    }
    if split.text is not None:
        rules["bigram of all of the text"] = WindowBigram.of_text(split.text, training.n_vocabulary)
    return [{"rule": name, **rule.score(split.held_out).to_dict()} for name, rule in rules.items()]


@dataclass(frozen=True)
class Prefix:
    """A text to continue, checked."""

    text: str
    ids: IntArray
    n_tokens: int
    seed: int
    window: int | None

    @classmethod
    def of(cls, found: NamedSequences, text: str, n_tokens: int, seed: int, window: int | None) -> Prefix:
        """The prefix in the ids of the vocabulary."""
        ids = found.vocabulary.encode(text, "prefix")
        if len(ids) == 0:
            raise reject("prefix", "at least one token", repr(text))
        return cls(text, ids, whole_number(n_tokens, "tokens", at_least=0), seed, window)

    def continued(self, found: NamedSequences, automaton: NextTokenAutomaton | str) -> dict[str, Any]:
        """What the automaton says follows, why, and how it goes on from there; or the reason why there is none."""
        seen = self.ids if self.window is None else self.ids[-self.window :]
        names = found.vocabulary.shown
        row: dict[str, Any] = {
            "prefix": self.text,
            "reason": "",
            "next": [],
            "explanation": "",
            "text": "",
            "whole": "",
        }
        if isinstance(automaton, str):
            return {**row, "reason": automaton}
        probability = automaton.predict_proba(seen)
        likely = [int(k) for k in np.argsort(-probability, kind="stable")[:_DISTRIBUTION] if probability[k] > 0.0]
        row["next"] = [{"token": names[k], "probability": float(probability[k])} for k in likely]
        row["explanation"] = str(automaton.explain(seen, found.vocabulary.quoted))
        ids = automaton.sample(self.ids, self.n_tokens, self.seed, window=self.window)
        row["text"] = found.vocabulary.decode(ids)
        row["whole"] = found.vocabulary.decode(np.concatenate([self.ids, ids]))
        return row


def fitted(answer: Answer, solution: GraphSolution) -> NextTokenAutomaton | str:
    """The automaton of the data, given their Graph-SVM; or the sentence that says why there is none."""
    if solution.status is Status.INFEASIBLE:
        return "There is no automaton, because the Graph-SVM of the data has no solution."
    try:
        return NextTokenAutomaton.fit(answer.found.data, graphs=answer.graphs, priority=solution)
    except InputError as problem:
        return str(problem)


# ---- files


def draw(answer: Answer, place: Path) -> None:
    """Write the picture of the shown graphs."""
    from marginlens.plotting.files import write_figure
    from marginlens.plotting.graphs import draw_graphs

    shown = [answer.graphs[k] for k in answer.shown]
    fig = draw_graphs(shown, answer.found.vocabulary.shown)
    write_figure(place, fig)


def save(answer: Answer, place: Path, held_out: float | None) -> None:
    """Keep the shown graphs edge by edge, with what made them: settings, versions, the command and the file's fingerprint."""
    from marginlens.runtime.versions import versions

    data, vocabulary = answer.found.data, answer.found.vocabulary
    chosen = [word for k in answer.shown for word in ("--last", vocabulary.shown[k])]
    parts = [] if held_out is None else ["--held-out", repr(held_out)]
    command = ["marginlens", "graph", answer.file.name, *answer.source.options(), *parts, *chosen, "--save", place.name]
    kept = {
        "command": shlex.join(command),
        "file": answer.file.name,
        "sha256": hashlib.sha256(answer.file.read_bytes()).hexdigest(),
        "settings": answer.source.settings(),
        "versions": {name: number for name, number in versions().items() if name in _PACKAGES},
        "samples": len(data),
        "dropped": len(data.dropped),
        "vocabulary": list(vocabulary.names),
        "shown": list(vocabulary.shown),
        "graphs": [{**to_table(answer.graphs[k]), "samples": int(np.sum(data.last == k))} for k in answer.shown],
    }
    write_whole(place, _lines(kept).encode(), "save")


def _lines(kept: dict[str, Any]) -> str:
    """JSON with one line for each entry, and for each part of a graph."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    graphs = ",\n".join(
        "{" + ",\n ".join(f'"{name}":{line(part)}' for name, part in one.items()) + "}" for one in kept["graphs"]
    )
    entries = [f'"{name}":{line(value)}' for name, value in kept.items() if name != "graphs"]
    return "{\n" + ",\n".join([*entries, f'"graphs":[\n{graphs}]']) + "\n}\n"
