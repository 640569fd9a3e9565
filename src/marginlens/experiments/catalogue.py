"""Every claim that marginlens reproduces, in the order of the papers."""

from __future__ import annotations

from importlib import import_module

from marginlens.errors import reject
from marginlens.experiments.claim import Claim

_MODULES: tuple[str, ...] = ()


def claims() -> tuple[Claim, ...]:
    """All claims; their modules are imported on the first call only."""
    return tuple(Claim.of(import_module(f"marginlens.experiments.{name}")) for name in _MODULES)


def claim(claim_id: str) -> Claim:
    """The claim with this id, such as "A-F9"."""
    known = {one.id.lower(): one for one in claims()}
    if claim_id.lower() not in known:
        raise reject("only", f"the id of a claim ({', '.join(one.id for one in known.values())})", repr(claim_id))
    return known[claim_id.lower()]
