"""The answers of `marginlens graph` as plain rows, its picture, and the table that keeps its graphs."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.commands.graph_sources import Source
from marginlens.data.files import check_place, write_whole
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.data.vocabulary import NamedSequences, Vocabulary
from marginlens.errors import InputError, reject, whole_number
from marginlens.graphs import PriorityGraph, priority_graphs
from marginlens.graphs.export import to_table
from marginlens.graphs.order import component_levels
from marginlens.svm import Status

_SHOWN = 3  # last tokens that are shown unless chosen
_LISTED = 200  # letters of an order that a row shows
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

    @classmethod
    def of(cls, file: Path, source: Source, found: NamedSequences, last: Sequence[str] | None) -> Answer:
        """Rank the tokens; `last` names the last tokens to show, the most frequent ones by default."""
        graphs = priority_graphs(found.data)
        counts = np.bincount(found.data.last, minlength=found.data.n_vocabulary)
        frequent = [int(k) for k in np.argsort(-counts, kind="stable") if counts[k]]
        shown = (
            frequent[:_SHOWN]
            if not last
            else list(dict.fromkeys(_last(name, found.vocabulary, graphs) for name in last))
        )
        return cls(file, source, found, graphs, shown)

    def told(self) -> dict[str, Any]:
        """All answers as plain values."""
        data = self.found.data
        return {
            "file": str(self.file),
            "size": _size(data),
            "settings": self.source.settings(),
            "samples": len(data),
            "dropped": len(data.dropped),
            "last_tokens": len(self.graphs),
            "acyclic": sum(graph.is_acyclic for graph in self.graphs.values()),
            "graphs": [self._row(k) for k in self.shown],
            "separability": _separability(data, self.graphs),
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
            "priority": _priority(graph, names),
        }


def check_output(place: Path | None, argument: str, ends: tuple[str, ...]) -> None:
    """Refuse a place that cannot be written, or a name without one of these endings, before anything is computed."""
    if place is None:
        return
    if place.suffix.lower() not in ends:
        raise reject(argument, f"a name that ends in {' or '.join(ends)}", repr(str(place)))
    check_place(place, argument)


def _last(name: str, vocabulary: Vocabulary, graphs: dict[int, PriorityGraph]) -> int:
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


def _size(data: SequenceDataset) -> str:
    upto = "" if np.ptp(data.lengths) == 0 else "up to "
    counted = f"{len(data)} sequences of {upto}{int(data.lengths.max())}"
    return f"{counted} over {data.n_vocabulary} tokens, d_model = {data.d_model}"


def _priority(graph: PriorityGraph, names: Sequence[str]) -> str:
    """The components level by level, tokens of equal priority in braces."""
    levels: list[list[str]] = [[] for _ in range(int(component_levels(graph).max()) + 1)]
    for part, level in zip(graph.components, component_levels(graph), strict=True):
        written = " ".join(names[token] for token in part)
        levels[level].append(written if len(part) == 1 else f"{{{written}}}")
    text = " > ".join(" ".join(level) for level in levels)
    return text if len(text) <= _LISTED else text[:_LISTED].rsplit(" ", 1)[0] + " …"


def _separability(data: SequenceDataset, graphs: dict[int, PriorityGraph]) -> dict[str, Any]:
    """Whether one W ranks all tokens of all last tokens as the graphs say."""
    from marginlens.svm.graph import graph_svm

    solution = graph_svm(data.E, graphs)
    infeasible = solution.status is Status.INFEASIBLE
    residual = float(solution.certificate_residual() if infeasible else solution.kkt_residual())
    return {
        "separable": solution.status in (Status.OPTIMAL, Status.TRIVIAL),
        "status": solution.status.name,
        "meaning": solution.status.value,
        "margin": float(solution.margin),
        "residual": residual,
        "smallest_gap": None if infeasible else _smallest_gap(data, graphs, solution.x),
        "strict_pairs": sum(len(graph.strict) for graph in graphs.values()),
        "proof": f"Farkas residual {residual:.1g}."
        if infeasible
        else f"Margin {solution.margin:.4g}, KKT residual {residual:.1g}.",
    }


def _smallest_gap(data: SequenceDataset, graphs: dict[int, PriorityGraph], W: FloatArray) -> float | None:
    """The smallest (e_i - e_j)ᵀ W e_k over all pairs i ⇒ j of all last tokens k; None where nothing is strict."""
    gaps = []
    for k, graph in graphs.items():
        height = data.E @ (W @ data.E[k])
        gaps.append(height[graph.strict[:, 0]] - height[graph.strict[:, 1]])
    found = np.concatenate(gaps)
    return float(found.min()) if len(found) else None


# ---- the automaton


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

    def continued(self, found: NamedSequences) -> dict[str, Any]:
        """What the automaton says follows, why, and how it goes on from there; or the reason why there is none."""
        from marginlens.nexttoken.automaton import NextTokenAutomaton

        seen = self.ids if self.window is None else self.ids[-self.window :]
        names = found.vocabulary.shown
        told: dict[str, Any] = {
            "prefix": self.text,
            "reason": "",
            "next": [],
            "explanation": "",
            "text": "",
            "whole": "",
        }
        try:
            automaton = NextTokenAutomaton.fit(found.data)
        except InputError as problem:
            return {**told, "reason": str(problem)}
        probability = automaton.predict_proba(seen)
        likely = [int(k) for k in np.argsort(-probability, kind="stable")[:_DISTRIBUTION] if probability[k] > 0.0]
        told["next"] = [{"token": names[k], "probability": float(probability[k])} for k in likely]
        told["explanation"] = str(automaton.explain(seen, names))
        ids = automaton.sample(self.ids, self.n_tokens, self.seed, window=self.window)
        told["text"] = found.vocabulary.decode(ids)
        told["whole"] = found.vocabulary.decode(np.concatenate([self.ids, ids]))
        return told


# ---- files


def draw(answer: Answer, place: Path) -> None:
    """Write the picture of the shown graphs."""
    from marginlens.graphs.picture import draw_graphs
    from marginlens.report import figures

    shown = [answer.graphs[k] for k in answer.shown]
    fig = draw_graphs(shown, answer.found.vocabulary.shown)
    form = figures.svg if place.suffix.lower() == ".svg" else figures.png
    write_whole(place, form(fig), "plot")


def save(answer: Answer, place: Path) -> None:
    """Keep the shown graphs edge by edge, with what made them: settings, versions, the command and the file's fingerprint."""
    from marginlens.versions import versions

    data, vocabulary = answer.found.data, answer.found.vocabulary
    chosen = [word for k in answer.shown for word in ("--last", vocabulary.shown[k])]
    command = ["marginlens", "graph", answer.file.name, *answer.source.options(), *chosen, "--save", place.name]
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
