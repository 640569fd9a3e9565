"""Long runs whose small tables the claims read: `python -m experiments.NAME` from a checkout. No wheel has them."""
