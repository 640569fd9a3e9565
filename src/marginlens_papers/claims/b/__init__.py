"""Claims of paper B."""
