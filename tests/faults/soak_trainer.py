"""A trainer that goes on where the last one was killed: `python -m tests.faults.soak_trainer FOLDER WORK LOG`.

LOG has a line for each batch: a digest of its bytes, and the state behind it. A line that was cut off does not count.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from .record import Record
from .works import WORKS

_MOST_STEPS = 1_000_000


def lines_of(log: Path) -> list[str]:
    """Whole lines."""
    return log.read_text().split("\n")[:-1] if log.exists() else []


def main() -> None:
    folder, work, log = Path(sys.argv[1]), WORKS[int(sys.argv[2])], Path(sys.argv[3])
    lines = lines_of(log)
    log.write_text("".join(f"{line}\n" for line in lines))
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    with work.open(folder, epochs=None) as pipeline:
        if lines:
            pipeline.load_state_dict(json.loads(lines[-1].partition(" ")[2]))
        for _ in range(_MOST_STEPS):
            batch, record = pipeline.take(), Record()
            record.add(batch)
            os.write(file, f"{record.digests[0].hex()} {json.dumps(pipeline.state_dict())}\n".encode())
            pipeline.release(batch)


if __name__ == "__main__":
    main()
