"""C §3.1, Fig 2: token-priority graphs, their components and the cyclic subdataset are what reachability says they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

import marginlens as ml
from marginlens.data.paper_examples import figure_2
from marginlens.graphs import PriorityGraph, is_acyclic, tied_positions
from marginlens.graphs.export import from_tables
from marginlens.typing import BoolArray, Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.tables import Table, read

SEED = 17
WINDOWS = (3, 16)
SUBSCRIPTS = ("e₁", "e₂", "e₃", "e₄")


class C_G(Claim):
    labels = ("C §3.1", "C Fig 2", "C Def 1", "C Def 2", "C Eq. (4)", "C Eq. (5)")

    # ---- the claim
    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Compare the library with brute force on random data, Figure 2 with its text, and the kept graphs with their edges."""
        n_datasets = 1_000 if effort is Effort.PAPER else 100
        rng = np.random.default_rng(SEED)
        totals = {name: 0.0 for name in C_G.expected if name.startswith("wrong_")}
        kinds, n_graphs, ragged = np.zeros(2), 0, 0
        for _ in progress.each(range(n_datasets), more=1):
            data = random_dataset(rng)
            for name, count in compare(data).items():
                totals[name] += count
            graphs = ml.priority_graphs(data)
            kinds[int(is_acyclic(graphs))] += 1
            n_graphs += len(graphs)
            ragged += int(np.ptp(data.lengths) > 0)
        tables = {window: text_table(window) for window in WINDOWS}
        progress.advance()
        numbers = {
            **totals,
            "figure_2_sentences_missed": float(figure_2_missed()),
            "text_components_differ": float(sum(_text_differs(table) for table in tables.values())),
            "acyclic_datasets": float(kinds[1]),
            "cyclic_datasets": float(kinds[0]),
            "graphs": float(n_graphs),
            "ragged_datasets": float(ragged),
            **{f"text_dropped_share_window_{window}": _dropped(table) for window, table in tables.items()},
        }
        differences = int(sum(totals.values()))
        measured = (
            f"{differences} differences from brute force in {n_graphs} graphs of {n_datasets} datasets ({int(kinds[0])} with ties, "
            f"{int(kinds[1])} acyclic, {ragged} with differing lengths). Figure 2 misses {numbers['figure_2_sentences_missed']:.0f} of 9 "
            f"sentences. In the real text, {_dropped(tables[16]):.0%} of the windows of 16 characters lack the next one and are left "
            f"out, {_dropped(tables[3]):.0%} of those of 3."
        )
        return Finding(measured, numbers, {"tables": tables})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Figure 2 with its cyclic subdataset, and the priorities of tiny Shakespeare's characters."""
        figures = {"figure-2": _draw_figure_2()}
        for window, table in finding.arrays["tables"].items():
            graphs = from_tables(table.graphs)
            title = (
                f"Tiny Shakespeare, characters, windows of {window}: {table.samples:,} kept, "
                f"{table.dropped:,} that lack the next character left out"
            )
            headings = [f"After {table.shown[graph['last']]} ({graph['samples']:,} windows)" for graph in table.graphs]
            shown = [graphs[graph["last"]] for graph in table.graphs]
            figures[f"text-window-{window}"] = ml.plotting.draw_graphs(
                shown, table.shown, title=title, headings=headings
            )
        return figures


# ---- brute force, from nothing but the definitions
@dataclass
class Brute:
    """One graph by definition: who points at whom, and who reaches whom."""

    n_vocabulary: int
    nodes: set[int] = field(default_factory=set)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, ids: list[int], label: int) -> None:
        """The edges of one sample."""
        self.nodes |= {*ids, label}
        for token in ids:
            if token != label:
                self.counts[label, token] = self.counts.get((label, token), 0) + 1

    def reach(self) -> BoolArray:
        """(K, K) whether a path leads from one token to another, or they are the same."""
        reach = np.eye(self.n_vocabulary, dtype=bool)
        for i, j in self.counts:
            reach[i, j] = True
        for _ in range(self.n_vocabulary.bit_length()):  # each round doubles the length of paths
            reach = (reach.astype(np.int64) @ reach.astype(np.int64)) > 0
        return reach


def brute_graphs(data: ml.SequenceDataset) -> dict[int, Brute]:
    """The graphs of a dataset, sample by sample."""
    graphs: dict[int, Brute] = {}
    for ids, label in (data[i] for i in range(len(data))):
        graphs.setdefault(int(ids[-1]), Brute(data.n_vocabulary)).add(ids.tolist(), label)
    return graphs


def random_dataset(rng: np.random.Generator) -> ml.SequenceDataset:
    """Sequences of differing lengths whose labels follow one order, a few orders, or nothing."""
    K, n = int(rng.integers(2, 15)), int(rng.integers(1, 61))
    orders = rng.permuted(np.tile(np.arange(K), (int(rng.choice([1, 2, 3, n])), 1)), axis=1)
    sequences = [rng.integers(K, size=rng.integers(1, 10)) for _ in range(n)]
    labels = [int(ids[np.argmin(orders[rng.integers(len(orders))][ids])]) for ids in sequences]
    return ml.SequenceDataset(sequences, labels, np.eye(K))


def compare(data: ml.SequenceDataset) -> dict[str, int]:
    """How many results of the library on a dataset differ from brute force."""
    wrong = dict.fromkeys([name for name in C_G.expected if name.startswith("wrong_")], 0)
    graphs, brute = ml.priority_graphs(data), brute_graphs(data)
    wrong["wrong_edges"] += int(graphs.keys() != brute.keys())
    reach = {k: graph.reach() for k, graph in brute.items()}
    for k in graphs.keys() & brute.keys():
        for name, count in _compare_graph(graphs[k], brute[k], reach[k]).items():
            wrong[name] += count
    selected = {}
    tied, is_label = tied_positions(data, graphs), data.is_label
    for i in range(len(data)):
        ids, label = data[i]
        place = slice(data.offsets[i], data.offsets[i + 1])
        both = reach[int(ids[-1])][label] & reach[int(ids[-1])][:, label]
        equal = [bool(both[token]) for token in ids]
        wrong["wrong_token_sets"] += int(is_label[place].tolist() != [token == label for token in ids])
        wrong["wrong_token_sets"] += int(tied[place].tolist() != equal)
        if len({int(token) for token, same in zip(ids, equal, strict=True) if same}) > 1:
            selected[i] = [int(token) for token, same in zip(ids, equal, strict=True) if same]
    wrong["wrong_subsets"] += _compare_subset(data, graphs, selected)
    acyclic = not any((reach[k] & reach[k].T & ~np.eye(data.n_vocabulary, dtype=bool)).any() for k in reach)
    wrong["wrong_acyclic_tests"] += int(is_acyclic(graphs) is not acyclic or acyclic is not (not selected))
    return wrong


def _compare_graph(graph: PriorityGraph, brute: Brute, reach: BoolArray) -> dict[str, int]:
    equal = reach & reach.T
    parts = {frozenset(np.flatnonzero(equal[token]).tolist()) for token in brute.nodes}
    edges = {tuple(edge): count for edge, count in zip(graph.edges.tolist(), graph.counts.tolist(), strict=True)}
    strict = {(i, j) for i, j in brute.counts if not reach[j, i]}
    pairs = {(i, j) for i in brute.nodes for j in brute.nodes if i < j and equal[i, j]}
    numbered = all(graph.component(i) <= graph.component(j) for i, j in brute.counts)
    return {
        "wrong_edges": int(edges != brute.counts or set(graph.nodes.tolist()) != brute.nodes),
        "wrong_components": int({frozenset(part.tolist()) for part in graph.components} != parts),
        "wrong_strict_pairs": int({tuple(pair) for pair in graph.strict.tolist()} != strict),
        "wrong_equal_pairs": int({tuple(pair) for pair in graph.tied.tolist()} != pairs),
        "wrong_numberings": int(not numbered),
    }


def _compare_subset(data: ml.SequenceDataset, graphs: dict[int, PriorityGraph], selected: dict[int, list[int]]) -> int:
    """Whether the cyclic subdataset is not exactly the samples and tokens that brute force keeps."""
    subset = ml.cyclic_subset(data, graphs)
    if not len(subset):
        return int(bool(selected))
    listed = {int(i): subset[place][0].tolist() for place, i in enumerate(subset.samples)}
    labels = all(subset.labels[place] == data.labels[i] for place, i in enumerate(subset.samples))
    queries = np.array_equal(subset.last, data.last[subset.samples])
    return int(listed != selected or not labels or not queries)


# ---- the paper's example, and a real text
def figure_2_missed() -> int:
    """How many sentences of the text about Figure 2 do not hold for its example."""
    data = figure_2()
    graphs = ml.priority_graphs(data)
    subset = ml.cyclic_subset(data, graphs)
    last = slice(*data.offsets[-2:])
    said = (
        sorted(graphs) == [0, 1],  # two graphs, of e_1 and e_2
        graphs[0].n_components == 4 and graphs[0].is_acyclic,
        sorted(len(part) for part in graphs[1].components) == [1, 3],
        [part.tolist() for part in graphs[1].components] == [[0, 1, 2], [3]],
        (subset.samples + 1).tolist() == [4, 5, 6, 7],
        set(subset.tokens.tolist()) == {0, 1, 2},  # e_4 is removed, and all of the graph of e_1
        len(set(subset.lengths.tolist())) > 1,  # App. D: inputs of varying lengths
        (np.flatnonzero(data.is_label[last]) + 1).tolist() == [3],  # O of the last sequence
        (np.flatnonzero(tied_positions(data, graphs)[last]) + 1).tolist() == [1, 3],  # R of the last sequence
    )
    return len(said) - sum(said)


@dataclass(frozen=True)
class TextGraphs(Table):
    """The graphs of a text: how many windows contain the next token, how many were left out, the names of the tokens, and the graphs."""

    MADE_BY = "marginlens graph tinyshakespeare.txt --save"

    samples: int
    dropped: int
    shown: tuple[str, ...]
    graphs: tuple[dict[str, Any], ...]

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        return cls(values["samples"], values["dropped"], tuple(values["shown"]), tuple(values["graphs"]))


def text_table(window: int) -> TextGraphs:
    """The graphs of tiny Shakespeare's characters that come with the package, for windows of this length."""
    settings = {"settings": {"tokens": "characters", "window": window}}
    return read(f"shakespeare-window-{window}", TextGraphs, settings)


def _text_differs(table: TextGraphs) -> int:
    """How many graphs of a table have components other than those that closing the matrix of their edges gives."""
    differ = 0
    graphs = from_tables(table.graphs)
    for stored in table.graphs:
        brute = Brute(len(table.shown), set(stored["nodes"]), {(i, j): count for i, j, count in stored["edges"]})
        found = graphs[stored["last"]]
        differ += int(any(_compare_graph(found, brute, brute.reach()).values()))
        differ += int([part.tolist() for part in found.components] != stored["components"])
    return differ


def _dropped(table: TextGraphs) -> float:
    return table.dropped / (table.dropped + table.samples)


def _draw_figure_2() -> Figure:
    data = figure_2()
    graphs = ml.priority_graphs(data)
    subset = ml.cyclic_subset(data, graphs)
    shown = list(graphs.values())
    headings = [f"Data, last token {SUBSCRIPTS[k]}" for k in graphs]
    if len(subset):
        cyclic = ml.priority_graphs(subset)
        shown += cyclic.values()
        headings += [f"Cyclic subdataset, last token {SUBSCRIPTS[k]}" for k in cyclic]
    return ml.plotting.draw_graphs(shown, SUBSCRIPTS, headings=headings)
