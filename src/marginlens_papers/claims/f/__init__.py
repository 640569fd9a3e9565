"""Claims of paper F."""
