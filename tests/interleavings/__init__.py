"""Every order of events between trainer, assembler and loaders, for small runs: the pure classes among model processes."""
