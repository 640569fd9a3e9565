"""Compiled functions, threads, Ctrl-C, progress, files written whole, packs of other packages, and versions of what was used."""
