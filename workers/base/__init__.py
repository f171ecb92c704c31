"""The common words: errors, shapes and types, parameters and their checks, the hooks."""
