"""Compiled loops that every part of the library is made of."""
