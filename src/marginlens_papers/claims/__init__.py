"""What proofs and claims compute beyond a prediction: bounds, constants and special limits, with the claims that use them."""
