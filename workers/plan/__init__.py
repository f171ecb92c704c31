"""The plan of a run: one frozen object, made in the trainer, handed whole to the assembler and the loaders."""
