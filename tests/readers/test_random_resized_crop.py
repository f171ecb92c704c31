"""random_resized_crop in a reader: bytes depend on the sample alone, and large JPEGs are decoded at a smaller size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from blobfeed.sources import open_source
from blobfeed.workers.api import Needed

from blobfeed import BatchReader
from tests.support.pictures import encoded, picture, write_list
from tests.support.tars import write_tar


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pictures")
    files = {f"{number}.jpg": encoded(picture(480, 640 + 8 * number), ".jpg") for number in range(6)}
    files["6.png"] = encoded(picture(120, 90), ".png")
    path = write_list(folder, files)
    return {"image_list": {"path": str(path), "root_folder": str(folder), "max_height": 700}}


def read(source: dict[str, Any], **how: Any) -> list[bytes]:
    settings: dict[str, Any] = {"batch_size": 7, "epochs": 1, "transform": {"random_resized_crop": 64, "mirror": True}}
    with BatchReader(source, **{**settings, "num_loaders": 0, **how}) as reader:
        return [batch["data"].tobytes() for batch in reader]


def test_the_bytes_are_those_of_the_sample_in_its_epoch(pictures: dict[str, Any]) -> None:
    first, second = read(pictures, epochs=2)
    assert first != second
    assert read(pictures, epochs=2, num_loaders=2, batch_size=7) == [first, second]
    assert b"".join(read(pictures, batch_size=2)) == first
    assert read(pictures, seed=1)[0] != first


def test_a_large_jpeg_is_decoded_no_larger_than_its_crop_needs(pictures: dict[str, Any]) -> None:
    source = open_source(pictures, tops=None, base_dir=Path())
    everything = np.arange(len(source))

    def lent(wanted: tuple[int, int]) -> list[tuple[int, ...]]:
        found = source.lend_needed(everything, lambda _row, size: Needed(wanted, (0, 0, *size)))
        assert found is not None
        return [sample["data"].shape[1:] for sample in found]

    assert lent((100, 100))[:2] == [(120, 160), (120, 162)]
    assert lent((61, 1))[0] == (120, 160)
    assert lent((200, 300))[0] == (240, 320)
    assert lent((480, 640))[0] == lent((9999, 9999))[0] == (480, 640)
    assert lent((100, 100))[6] == (120, 90), "a PNG as it is"


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_the_pictures_of_another_top_keep_their_size(kind: str, tmp_path: Path) -> None:
    content = encoded(picture(480, 640), ".jpg")
    path = write_list(tmp_path, {"0.jpg": content})
    listed = {"image_list": {"path": str(path), "root_folder": str(tmp_path), "equal_sizes": True}}
    write_tar(tmp_path / "a.tar", [("0.left.jpg", content), ("0.right.jpg", content)])
    members = {"data": "left.jpg", "other": "right.jpg"}
    source: dict[str, Any] = {"tar": {"path": str(tmp_path / "a.tar"), "members": members, "equal_sizes": True}}
    if kind == "zip":
        source = {"zip": [{**listed, "tops": ["data"]}, {**listed, "tops": {"other": "data"}}]}
    with BatchReader(source, batch_size=1, transform={"random_resized_crop": 64}, num_loaders=0) as reader:
        batch = next(iter(reader))
    assert {name: batch[name].shape[1:] for name in members} == {"data": (3, 64, 64), "other": (3, 480, 640)}


def test_a_reduced_picture_has_the_same_part(pictures: dict[str, Any]) -> None:
    whole = {"image_list": {**pictures["image_list"], "dct_scaling": False}}
    for reduced, full in zip(read(pictures, epochs=3), read(whole, epochs=3), strict=True):
        ours, others = np.frombuffer(reduced, np.uint8).astype(float), np.frombuffer(full, np.uint8)
        assert reduced != full
        assert np.abs(ours - others).mean() < 6, "of 256: the parts differ by less than a pixel"


def test_in_a_test_the_centre_is_resized_and_not_mirrored(pictures: dict[str, Any]) -> None:
    (once,), (again,) = read(pictures, train=False), read(pictures, train=False, seed=5)
    assert once == again
    (data,) = np.frombuffer(read(pictures, train=False)[0], np.uint8).reshape(7, 3, 64, 64)[6:]
    expected = picture(120, 90)[20:99, 5:84]
    np.testing.assert_array_equal(data[::-1].transpose(1, 2, 0), cv2.resize(expected, (64, 64)))
