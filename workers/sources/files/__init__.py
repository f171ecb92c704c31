"""The bytes of local files and of objects in storage, which all sources read, and the paths that name them."""
