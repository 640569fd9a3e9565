"""Threads, Ctrl-C, progress, files that are written completely or not at all, packs of other packages, and versions."""
