"""The child processes: assembler, nursery, loaders, sampler; starting them, and replacing dead ones."""
