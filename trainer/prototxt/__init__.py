"""Prototxt files as messages: schema, phases, and where in a file a value stands. Needs no torch."""
