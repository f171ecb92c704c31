"""Loaders on other machines: the bridge between assembler and Ray cluster, and its actors. No other imports ray."""
