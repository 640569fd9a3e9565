"""What proofs and claims compute beyond a prediction: bounds, constants, constructions and special limits."""
