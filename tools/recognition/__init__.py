"""From paths to a source that reads them: what a file or a folder is, and its tops, labels and sizes."""
