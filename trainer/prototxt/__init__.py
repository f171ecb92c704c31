"""Prototxt files as messages: schema, phases, and the lines of their fields. Needs no torch."""
