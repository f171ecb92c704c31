"""The order of samples: permutations, epochs, mixing, batches. Pure arithmetic, no I/O."""
