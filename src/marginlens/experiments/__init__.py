"""One module per claim: what it computes, how it is drawn, and the numbers it must reach."""
