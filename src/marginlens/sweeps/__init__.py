"""Sweeps: grids of many small problems, run chunk by chunk into a folder that no crash can spoil."""

from typing import TYPE_CHECKING

from marginlens.removed import no_attribute
from marginlens.sweeps.plan import Plan
from marginlens.sweeps.run import sweep
from marginlens.sweeps.store import Sweep
from marginlens.sweeps.summary import Summary

__all__ = ["Plan", "Summary", "Sweep", "sweep"]

if not TYPE_CHECKING:  # a checker of types is to refuse names that are not there

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
