"""The child processes: assembler, nursery, loaders; starting them, and replacing dead ones."""
