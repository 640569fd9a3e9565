"""Sweeps: grids of many small problems, run chunk by chunk into a folder that no crash can spoil."""

from marginlens.sweeps.plan import Plan
from marginlens.sweeps.run import Problem, Sweep, SweepStatus, sweep

__all__ = ["Plan", "Problem", "Sweep", "SweepStatus", "sweep"]
