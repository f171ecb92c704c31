"""The work of a loader on a task: read, decode and crop into the rows of a slot; postprocess."""
