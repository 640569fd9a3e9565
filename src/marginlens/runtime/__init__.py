"""Compiled functions, threads, progress, files written whole, and the versions a result was computed with."""
