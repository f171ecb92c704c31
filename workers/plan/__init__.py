"""The plan of a run: one frozen object, made in the trainer and sent whole to the assembler and the loaders."""
