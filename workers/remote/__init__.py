"""Loaders on other machines: the bridge between assembler and Ray cluster, and what its actors do. Only here is ray."""
