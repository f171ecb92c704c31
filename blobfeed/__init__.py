"""blobfeed: an input layer that has whole batches ready before the trainer asks."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

# The folders of the subpackages stand beside this one in a checkout, and inside it once installed (setup.py maps
# them). Without this line `import blobfeed`, typed at the top of a checkout, would find a package with no insides.
if (_checkout := Path(__file__).resolve().parent.parent).joinpath("setup.py").exists():
    __path__.append(str(_checkout))
