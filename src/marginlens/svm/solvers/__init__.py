"""Solvers of least-distance problems: dense batches, rows known by their tokens, and branch and bound."""
