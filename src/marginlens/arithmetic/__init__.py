"""Arithmetic that keeps its digits: numbers with a logarithmic scale, lengths and directions of any size, and what rounding can do."""
