"""Who runs, who owes what, who died: assembler, ledger, loader pool, nursery, loaders."""
