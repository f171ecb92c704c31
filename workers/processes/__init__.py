"""Which processes run, what each has to make, which died: assembler, ledger, loader pool, nursery, loaders."""
