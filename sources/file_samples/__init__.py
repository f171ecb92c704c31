"""Files of which each is a sample: npy, npz, pictures, or bytes for a decode hook."""
