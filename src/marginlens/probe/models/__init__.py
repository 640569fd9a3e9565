"""The models that can be probed: adapters of their families, what they compute, how they are loaded and what they read."""
