"""The ground of all other rooms, without NumPy: errors, extras, files, deadlines, limits."""
