"""`python -m blobfeed` is the command `blobfeed`."""

from .cli import main

if __name__ == "__main__":
    main()
