"""MemoryData in nets: batches of the user's own arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from blobfeed.trainer.prototxt import Phase
from blobfeed.trainer.pycaffe import Net

MEMORY = """
layer { name: "m" type: "MemoryData" top: "data" top: "label"
  memory_data_param { batch_size: 2 channels: 1 height: 2 width: 3 } }
layer { name: "double" type: "Power" bottom: "data" top: "twice" power_param { scale: 2 } }
"""


def test_memory_data_gives_the_arrays_batch_by_batch_and_begins_again(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(MEMORY)
    net = Net(tmp_path / "net.prototxt", int(Phase.TEST))
    data = np.arange(24, dtype=np.float32).reshape(4, 1, 2, 3)
    for labels in (np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32).reshape(4, 1, 1, 1)):
        net.set_input_arrays(data, labels)
        for first in (0, 2, 0):
            found = net.forward()
            np.testing.assert_array_equal(found["twice"], 2 * data[first : first + 2])
            np.testing.assert_array_equal(found["label"], [first, first + 1])
