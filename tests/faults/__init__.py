"""Faults injected into real pipelines, and a figure for each: `make faults`, or `python -m tests.faults`."""
