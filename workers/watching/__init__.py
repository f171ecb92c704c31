"""The views of a running pipeline: intervals between two readings of its status board, the diagnosis, metrics, traces.

All of it is pure but for the files that it writes.
"""
