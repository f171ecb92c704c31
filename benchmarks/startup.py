"""SPDL's example `benchmark_ipc_dataloader`, as it is, with torch's DataLoader and with blobfeed's in its place.

It measures how long the first batch takes by the size of the data set, which each worker is sent. All arguments behind
the script are its own: `python -P -m benchmarks.startup SCRIPT --sizes 16 64 --workers 2 --runs 2`
"""

from __future__ import annotations

import subprocess
import sys

_WITH_BLOBFEED = """
import runpy, sys, torch.utils.data
from blobfeed import DataLoader
torch.utils.data.DataLoader = DataLoader
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main(script: list[str]) -> None:
    for name, how in (("torch", []), ("blobfeed", ["-c", _WITH_BLOBFEED])):
        print(f"{name}:", flush=True)
        subprocess.run([sys.executable, "-P", *how, *script], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
