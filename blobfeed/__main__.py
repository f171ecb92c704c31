"""Runs the command `blobfeed` for `python -m blobfeed`."""

from .cli import main

if __name__ == "__main__":
    main()
