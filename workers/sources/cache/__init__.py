"""The decoded cache: samples of any source, kept decoded in a file on disk."""
