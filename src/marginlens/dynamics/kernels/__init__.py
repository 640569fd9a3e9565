"""Compiled descent loops, one for each risk."""
