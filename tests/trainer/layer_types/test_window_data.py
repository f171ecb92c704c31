"""WindowData and MemoryData in nets: batches of background and foreground, and of the user's own arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from blobfeed.trainer.prototxt import BlobProto, Phase, fill_blob, message_class
from blobfeed.trainer.pycaffe import Net
from blobfeed.workers.sources import open_source
from numpy.typing import NDArray

from blobfeed import LayerHarness, ParameterError, WindowsInputLayer
from tests.support.pictures import encoded, noise
from tests.support.trainer_nets import make_net

SIZE = 9


def window_data(options: str = "", transform: str = f"crop_size: {SIZE}") -> str:
    return f"""layer {{ name: "d" type: "WindowData" top: "data" top: "label"
        transform_param {{ {transform} }}
        window_data_param {{ source: "windows.txt" batch_size: 8 fg_fraction: 0.5 {options} }} }}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = []
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(encoded(noise(20, 30, number), ".png"))
        lines += [f"# {number}", f"{number}.png", "3", "20", "30", "3"]
        lines += [f"{number + 1} 0.8 2 3 28 15", f"{number + 1} 0.1 0 0 8 19", f"{number + 1} 0.3 10 10 14 14"]
    (tmp_path / "windows.txt").write_text("\n".join(lines))
    return tmp_path


def windows_of(folder: Path, mirror: bool = False) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """All samples of the source, and where they show a picture."""
    options = {"path": "windows.txt", "crop_size": SIZE, "context_pad": 2, "mirror": mirror}
    source = open_source({"windows": options}, tops=None, base_dir=folder)
    rows = {name: np.empty((len(source), *spec.shape), spec.dtype) for name, spec in source.specs.items()}
    source.read(np.arange(len(source)), rows)
    source.close()
    return rows["data"].astype(np.float32), rows["area"]


def shown(area: NDArray[np.int64]) -> NDArray[np.bool_]:
    top, left, height, width = area
    mask = np.zeros((3, SIZE, SIZE), bool)
    mask[:, top : top + height, left : left + width] = True
    return mask


@pytest.mark.parametrize("mean", ["values", "file"])
def test_a_batch_is_background_then_foreground_less_the_mean_where_the_picture_shows(folder: Path, mean: str) -> None:
    image = np.random.default_rng(0).uniform(0, 200, (3, SIZE + 4, SIZE + 4)).astype(np.float32)
    blob = message_class(BlobProto)()
    fill_blob(blob, image[np.newaxis])
    (folder / "mean.binaryproto").write_bytes(blob.SerializeToString())
    by_value = mean == "values"
    less = np.array([104, 117, 123], np.float32)[:, None, None] if by_value else image[:, 2:-2, 2:-2]
    text = "mean_value: 104 mean_value: 117 mean_value: 123" if by_value else 'mean_file: "mean.binaryproto"'
    net = make_net(
        folder, window_data("context_pad: 2 scale: 0.5", f"crop_size: {SIZE} mirror: true {text}"), Phase.TEST
    )
    samples, areas = windows_of(folder, mirror=True)
    masks = [shown(area) for area in areas]
    values = [np.where(m, (s - less) * np.float32(0.5), np.float32(0)) for s, m in zip(samples, masks, strict=True)]
    expected = [(each + np.float32(0)).tobytes() for each in values]  # without negative zeros
    assert not np.all(masks)
    seen = set()
    try:
        for _ in range(6):
            net.forward()
            labels = np.array(net.blobs["label"].data)
            assert not labels[:4].any()
            assert set(labels[4:]) <= {1.0, 2.0}
            for row, label in zip(np.array(net.blobs["data"].data), labels, strict=True):
                index = expected.index((row + np.float32(0)).tobytes())
                seen.add(index)
                assert label == [0, 0, 0, 0, 1, 2][index % 6]
    finally:
        net.close()
    assert len(seen) == 12


def test_the_seed_gives_the_windows_and_a_state_goes_on(folder: Path) -> None:
    nets = [make_net(folder, window_data("context_pad: 2"), seed=seed) for seed in (1, 1, 2)]
    try:
        found = []
        for net in nets:
            net.forward()
            found.append(np.array(net.blobs["data"].data).tobytes())
        assert found[0] == found[1] != found[2]
    finally:
        for net in nets:
            net.close()


def test_r_cnns_old_layer_reads_the_same(folder: Path) -> None:
    old = f"""layers {{ name: "d" type: WINDOW_DATA top: "data" top: "label" window_data_param {{
        source: "windows.txt" batch_size: 8 crop_size: {SIZE}
        fg_fraction: 0.5 context_pad: 2 crop_mode: "square" scale: 0.5 }} }}"""
    for text in (old, window_data('context_pad: 2 crop_mode: "square" scale: 0.5')):
        net = make_net(folder, text)
        net.forward()
        found = np.array(net.blobs["data"].data)
        net.close()
        if text == old:
            expected = found
    np.testing.assert_array_equal(found, expected)


def test_the_mean_file_of_the_layer_may_lie_in_the_home_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder / "home"))
    values = {"path": "windows.txt", "crop_size": SIZE, "batch_size": 4, "mean_file": "~/mean.npy"}
    with pytest.raises(ParameterError, match=f"{folder}/home/mean.npy"):
        LayerHarness(WindowsInputLayer, values, base_dir=folder)


def test_a_mean_of_one_number_is_for_all_channels(folder: Path) -> None:
    values = {"path": "windows.txt", "crop_size": SIZE, "batch_size": 4, "num_loaders": 0}
    found = []
    for mean in (50, [50, 50, 50]):
        with LayerHarness(WindowsInputLayer, {**values, "mean_value": mean}, base_dir=folder) as harness:
            found.append(np.array(harness.forward()["data"]))
    np.testing.assert_array_equal(found[0], found[1])


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
