"""Claims of paper A."""
