"""Every claim that marginlens reproduces, in the order of the papers."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from marginlens.errors import reject
from marginlens_papers.claim import Claim

_MODULES: tuple[str, ...] = (
    "a.lemma_1",
    "a.smoothness",
    "a.softmax_covariance",
    "a.figure_1a",
    "a.figure_1b",
    "a.figure_1c",
    "a.figure_2",
    "a.figure_3",
    "a.figure_4",
    "a.figure_5",
    "a.figures_6_and_7",
    "a.figure_8",
    "a.figure_9",
    "a.lemma_2",
    "a.lemma_4",
    "a.lemma_8",
    "a.theorem_1",
    "a.theorem_2",
    "a.theorem_3",
    "a.theorem_4",
    "a.theorem_8",
    "b.lemma_2",
    "b.initialisation",
    "b.lemma_7",
    "b.lemma_3",
    "b.theorem_5",
    "b.lemma_6",
    "b.figure_2",
    "b.figure_3",
    "b.figures_1_and_4",
    "c.text_graphs",
    "c.lemma_1",
    "c.lemma_2",
    "c.lemma_3",
    "c.theorem_1",
    "c.theorem_2",
    "c.theorem_3",
    "c.figure_3",
    "c.figure_4",
    "c.figure_5",
    "c.figure_6",
    "c.automaton",
    "c.gradient",
    "ours.residual_law",
    "ours.basins",
    "ours.class_window",
)


def claims() -> tuple[Claim, ...]:
    """All claims; their modules are imported on the first call only."""
    return tuple(Claim.of(import_module(f"marginlens_papers.claims.{name}")) for name in _MODULES)


def claim(claim_id: str) -> Claim:
    """The claim with this id, such as "A-F9"; upper and lower case are the same."""
    return chosen([claim_id])[0]


def chosen(ids: Iterable[str]) -> tuple[Claim, ...]:
    """The claims with these ids, each once, in the order of the catalogue."""
    known = {one.id.lower(): one for one in claims()}
    wanted = [name.strip() for name in ids]
    for name in wanted:
        if name.lower() not in known:
            raise reject("only", f"the id of a claim ({', '.join(one.id for one in known.values())})", repr(name))
    return tuple(one for key, one in known.items() if key in {name.lower() for name in wanted})
