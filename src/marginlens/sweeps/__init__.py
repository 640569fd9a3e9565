"""Sweeps: grids of many small problems, run chunk by chunk into a folder that no crash can spoil."""

from marginlens.sweeps.plan import Plan
from marginlens.sweeps.run import sweep
from marginlens.sweeps.store import Problem, Sweep, SweepStatus
from marginlens.sweeps.summary import CellSummary, Numbers, Shares, Summary

__all__ = ["CellSummary", "Numbers", "Plan", "Problem", "Shares", "Summary", "Sweep", "SweepStatus", "sweep"]
