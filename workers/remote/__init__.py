"""Loaders on other machines: the bridge between the assembler and a Ray cluster, and what its actors do. Imports ray."""
