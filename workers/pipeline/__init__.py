"""What the trainer's process holds: the pipeline, its feed, the plan of a run."""
