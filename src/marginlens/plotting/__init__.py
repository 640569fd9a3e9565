"""Figures: the style they share, planes with tokens and paths, priority graphs, token clouds, and files."""
