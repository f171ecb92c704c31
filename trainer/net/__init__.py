"""The net: layers wired to blobs, run forward and backward."""
