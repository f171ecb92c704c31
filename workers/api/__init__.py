"""The interface for users: sources, hooks, parameters and their checks, shapes and types."""
