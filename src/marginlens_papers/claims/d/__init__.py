"""Claims of paper D."""
