"""Compiled descent loops, one for each risk, and the numbers by which they say how a run ended."""

RAN_ALL, STATIONARY, NON_FINITE, TIED = 0, 1, 2, 3
