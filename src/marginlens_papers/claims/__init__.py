"""What proofs and claims compute beyond a prediction: bounds, constants and special limits, beside the claims that use them."""
