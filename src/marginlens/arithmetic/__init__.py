"""Arithmetic without loss of digits: numbers with a logarithmic scale, lengths and directions of any size, and bounds on rounding."""
