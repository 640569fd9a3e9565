"""What is measured of one attention head: sparsity, key-query matrix, selections, preferences, and how max-margin it is."""
