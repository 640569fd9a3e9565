"""What proofs of the papers compute on their way: bounds, constants and constructions that a prediction does not need."""
