"""Claims: what each computes, how it is drawn, and the numbers that it must reach."""
