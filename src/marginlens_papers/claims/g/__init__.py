"""Claims of paper G."""
