"""The vocabulary of all other rooms: errors, shapes and types, parameters and their checks, hooks."""
