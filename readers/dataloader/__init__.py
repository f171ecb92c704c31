"""`DataLoader`, torch's by its own names. Its modules bring torch, so they are imported by their own names."""
