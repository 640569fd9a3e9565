"""Claims of paper C."""
