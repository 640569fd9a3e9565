"""Solvers of least-distance problems: dense batches, rows given by their tokens, and branch and bound."""
