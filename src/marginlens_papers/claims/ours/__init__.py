"""Claims beyond the papers."""
