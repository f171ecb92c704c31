"""From a slot into the trainer's memory: NumPy, torch, CUDA."""
