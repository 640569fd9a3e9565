"""What a probe found as pages: over layers and heads, and over the checkpoints of a training run."""
