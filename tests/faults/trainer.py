"""A trainer to be killed: `python -m tests.faults.trainer FOLDER` says on standard output how far it has come.

i: everything is imported, m: the pipeline is made, s: its processes are started, b: it has a batch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .works import WORKS


def main() -> None:
    os.write(1, b"i")
    with WORKS[4].open(Path(sys.argv[1]), epochs=None) as pipeline:
        os.write(1, b"m")
        pipeline.start()
        os.write(1, b"s")
        pipeline.take()  # on loan when it dies
        os.write(1, b"b")
        while True:
            pipeline.release(pipeline.take())


if __name__ == "__main__":
    main()
