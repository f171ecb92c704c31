"""What all sources read from: the bytes of local files and of objects in storage, and the paths that name them."""
