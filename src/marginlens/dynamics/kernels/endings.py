"""How a run ends, as the numbers that compiled loops return."""

RAN_ALL, STATIONARY, NON_FINITE, TIED = 0, 1, 2, 3
