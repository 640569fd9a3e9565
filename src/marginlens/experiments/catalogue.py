"""Every claim that marginlens reproduces, in the order of the papers."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from marginlens.errors import reject
from marginlens.experiments.claim import Claim

_MODULES: tuple[str, ...] = (
    "a_l1",
    "a_s",
    "a_k3",
    "a_f1a",
    "a_f1b",
    "a_f1c",
    "a_f2",
    "a_f3",
    "a_f4",
    "a_f5",
    "a_f67",
    "a_f8",
    "a_f9",
    "a_l2",
    "a_l4",
    "a_l8",
    "a_t1",
    "a_t2",
    "a_t3",
    "a_t4",
    "a_t8",
    "b_l2",
    "b_i",
    "b_l7",
    "b_l3",
    "b_t5",
    "b_l6",
    "b_f2",
    "b_f3",
    "b_f14",
    "c_g",
    "c_l1",
    "c_l2",
    "c_l3",
    "c_t1",
    "c_t2",
    "c_t3",
    "c_f3",
    "c_f4",
    "c_f5",
    "c_f6",
    "c_a",
    "c_l",
    "x_o",
    "x_b",
    "x_t5",
)


def claims() -> tuple[Claim, ...]:
    """All claims; their modules are imported on the first call only."""
    return tuple(Claim.of(import_module(f"marginlens.experiments.{name}")) for name in _MODULES)


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
