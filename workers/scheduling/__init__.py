"""The ledger, which assigns rows to loaders, and the assembler's other decisions. Pure."""
