"""A monitor for training: the measures of every attention head on a fixed small batch, as a model learns."""
