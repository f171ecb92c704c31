"""`python -m blobfeed` is the command `blobfeed`."""

from .cli import main

main()
