"""What a loader does with a task: read, decode, crop, into the rows of a slot; postprocess."""
