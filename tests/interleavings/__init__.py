"""Every order of events between trainer, assembler and loaders, for small runs: pure classes, model processes."""
