"""Which loader makes which rows, and what the trainer is told: the ledger and the assembler's decisions. Pure."""
