"""Real models: what the attention heads of Hugging Face models select, how sparsely and with which margin."""
