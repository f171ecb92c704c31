"""The part of a run that the trainer's process holds: the pipeline and its feed."""
