"""Which sample comes when: permutations, epochs, mixing, batches. Pure arithmetic, no I/O."""
