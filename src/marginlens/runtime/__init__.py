"""Compiled functions, threads, Ctrl-C, progress, files written whole, and the versions a result was computed with."""
