"""Claims of paper E."""
