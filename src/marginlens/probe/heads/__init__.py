"""Measures of one attention head: sparsity, key-query matrix, selections, preferences, and closeness to max-margin."""
