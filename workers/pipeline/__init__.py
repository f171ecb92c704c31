"""What the trainer's process holds: the pipeline and its feed."""
