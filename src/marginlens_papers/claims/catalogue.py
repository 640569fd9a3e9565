"""The catalogue of claims, in the order of the papers, and the claims that installed packages add."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from marginlens.errors import InputError
from marginlens.names import nearest
from marginlens.papers import SOURCES
from marginlens.runtime.packs import CLAIMS, Added, load_packs
from marginlens_papers.claim import Claim

_MODULES: dict[str, str] = {  # module of each claim
    "A-L1": "a.lemmas",
    "A-S": "a.lemmas",
    "A-K3": "a.lemmas",
    "A-F1a": "a.figure_1",
    "A-F1b": "a.figure_1",
    "A-F1c": "a.figure_1",
    "A-F2": "a.cones",
    "A-F3": "a.figures_3_to_5",
    "A-F4": "a.figures_3_to_5",
    "A-F5": "a.figures_3_to_5",
    "A-F67": "a.vision",
    "A-F8": "a.theorem_2",
    "A-F9": "a.figure_9",
    "A-L2": "a.lemmas",
    "A-L4": "a.gradient",
    "A-L8": "a.gradient",
    "A-T1": "a.paths",
    "A-T2": "a.theorem_2",
    "A-T3": "a.cones",
    "A-T4": "a.paths",
    "A-T8": "a.theorem_8",
    "B-L2": "b.first_step",
    "B-I": "b.first_step",
    "B-L7": "b.gradient",
    "B-L3": "b.selections",
    "B-D2": "b.selections",
    "B-T5": "b.theorem_5",
    "B-L6": "b.selections",
    "B-L19": "b.selections",
    "B-F2": "b.levels",
    "B-F3": "b.text_runs",
    "B-F14": "b.text_runs",
    "C-G": "c.text_graphs",
    "C-L1": "c.lemmas",
    "C-L2": "c.lemmas",
    "C-L3": "c.lemmas",
    "C-T1": "c.paths",
    "C-T2": "c.paths",
    "C-T2a": "c.paths",
    "C-T3": "c.theorem_3",
    "C-F3": "c.figures_3_to_6",
    "C-F4": "c.figures_3_to_6",
    "C-F5": "c.figures_3_to_6",
    "C-F6": "c.figures_3_to_6",
    "C-A": "c.automaton",
    "C-H": "c.held_out",
    "C-L": "c.gradient",
    "C-O": "c.other_optimizers",
    "D-1": "d.local_convergence",
    "D-2": "d.rank",
    "D-3": "d.multi_token",
    "E-1": "e.cross_table",
    "F-1": "f.figure_2",
    "G-T2": "g.theorem_2",
    "X-O": "ours.residual_law",
    "X-B": "ours.basins",
    "X-T5": "ours.class_window",
    "X-S": "ours.scale",
    "X-P1": "ours.proofs",
    "X-P2": "ours.proofs",
    "X-P3": "ours.proofs",
    "X-P4": "ours.any_norm",
    "X-C1": "ours.chains",
    "X-C2": "ours.chains",
    "X-C3": "ours.chains",
    "X-N1": "ours.norm_margins",
    "X-N2": "ours.norm_margins",
    "X-N3": "ours.factors",
    "X-N4": "ours.norm_selections",
    "X-N5": "ours.adam_faces",
    "X-N6": "ours.memory",
    "X-N7": "ours.mini_batches",
    "X-N8": "ours.factor_decay",
    "X-N9": "ours.any_norm",
    "X-H": "ours.several_heads",
    "X-V": "ours.polarisation",
    "X-M": "ours.copying",
    "X-R1": "ours.bandits",
    "X-R2": "ours.bandits",
    "X-R3": "ours.preferences",
    "X-R4": "ours.retrieval",
    "X-R5": "ours.routers",
    "X-R6": "ours.sinks",
    "X-F": "ours.benign",
}

OWN_IDS = tuple(_MODULES)  # of the claims of this library
_REQUIRED = ("labels", "title", "statement", "protocol", "paper_value", "expected")  # of every claim


def claims() -> tuple[Claim, ...]:
    """The claims of this library; their modules are imported on the first call."""
    modules = {name: import_module(f"marginlens_papers.claims.{place}") for name, place in _MODULES.items()}
    return tuple(getattr(module, name.replace("-", "_"))() for name, module in modules.items())


def known_claims() -> tuple[Claim, ...]:
    """The claims of this library, then those that installed packages list under `marginlens.claims`, in alphabetical order."""
    return (*claims(), *added_claims())


def added_claims() -> tuple[Claim, ...]:
    """The claims that installed packages add."""
    return tuple(_from_pack(added) for added in load_packs(CLAIMS, _check_pack))


def _from_pack(added: Added) -> Claim:
    added.value.package = (
        added.package
    )  # of the class: a claim without attributes of its own can run in another process
    claim: Claim = added.value()
    return claim


def _check_pack(added: Added) -> None:
    """Refuse an object that is not a claim, has an id that the entry point does not name or this library has, or cites an unknown paper."""
    kind = added.value
    if not (isinstance(kind, type) and issubclass(kind, Claim)) or kind.__abstractmethods__:
        raise InputError("claim", "a subclass of marginlens_papers.claim.Claim with compute and draw", repr(kind))
    if kind.id != added.name:
        raise InputError("claim", f"a class whose id is {added.name}, as the entry point is named", kind.id)
    if kind.id in _MODULES:
        raise InputError("claim", "a claim with an id that marginlens does not have", kind.id)
    missing = [name for name in _REQUIRED if not hasattr(kind, name)]
    if missing:
        raise InputError(
            "claim", f"a class with the attributes {', '.join(_REQUIRED)}", f"one without {', '.join(missing)}"
        )
    key = kind.id.partition("-")[0]
    paper = kind.source or SOURCES.get(key)
    if paper is None or paper.key != key:
        got = "no source" if paper is None else f"a source with the key {paper.key}"
        raise InputError("claim", f"a class whose source is the paper with the key {key}", got)


def claim(claim_id: str) -> Claim:
    """The claim with this id, such as "A-F9"; upper and lower case are the same."""
    return chosen([claim_id])[0]


def chosen(ids: Iterable[str]) -> tuple[Claim, ...]:
    """The claims with these ids, each once, in the order of the catalogue."""
    known = {claim.id.lower(): claim for claim in known_claims()}
    wanted = [name.strip().lower() for name in ids]
    for name in wanted:
        if name not in known:
            expected = "the id of a claim, which marginlens claims lists"
            raise InputError("only", expected, repr(name), nearest(name, [claim.id for claim in known.values()]))
    return tuple(claim for name, claim in known.items() if name in wanted)
