"""The text file that lists images: paths, labels, and lines that cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blobfeed.sources.images import ListedImages, parse_image_list
from hypothesis import given
from hypothesis import strategies as st

from blobfeed import ArraySpec
from tests.sources.images.reading import SIZE, opened, samples
from tests.support.pictures import encoded, noise, write_list

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=8)
paths = st.lists(words, min_size=1, max_size=3).map(" ".join)


def paths_of(listed: ListedImages) -> list[str]:
    return [listed[index].decode() for index in range(len(listed))]


@given(
    entries=st.integers(0, 3).flatmap(
        lambda labels: st.lists(
            st.tuples(paths, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=labels, max_size=labels)), min_size=1
        )
    ),
    noise=st.sampled_from(["", "\n", "  \n\t\n"]),
    ending=st.sampled_from(["\n", "\r\n", "  \n"]),
    separator=st.sampled_from([" ", "\t", "   "]),
)
def test_what_is_written_into_a_list_is_parsed_from_it(
    entries: list[tuple[str, list[int]]], noise: str, ending: str, separator: str
) -> None:
    labels = len(entries[0][1])
    text = "".join(noise + separator.join([path, *map(str, numbers)]) + ending for path, numbers in entries)
    listed, values = parse_image_list(text.encode(), "list.txt", labels)
    assert paths_of(listed) == [path for path, _ in entries]
    assert values.tolist() == [numbers for _, numbers in entries]
    lines = text.split("\n")
    for number, (path, _) in enumerate(entries):
        assert path in lines[int(listed.line(number).removeprefix("list.txt line ")) - 1]


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a.jpg 1\nb c.jpg 2\n", [[1], [2]], ["a.jpg", "b c.jpg"]),
        ("a.jpg 1 2.5\nb.jpg -3 4e2\n", [[1, 2.5], [-3, 400]], ["a.jpg", "b.jpg"]),
        ("a b.jpg\n7.jpg\n", [[], []], ["a b.jpg", "7.jpg"]),
        ("\ufeffa.jpg 0\n", [[0]], ["a.jpg"]),
        ("photo 5 1\na.jpg 2\nb.jpg 3", [[1], [2], [3]], ["photo 5", "a.jpg", "b.jpg"]),
        ("42 7\n", [[7]], ["42"]),
        ("#1.jpg 1\n  # 2.jpg 2\n", [[1], [2]], ["#1.jpg", "  # 2.jpg"]),
    ],
)
def test_the_number_of_labels_is_seen_from_the_lines(text: str, labels: list[list[float]], expected: list[str]) -> None:
    listed, values = parse_image_list(text.encode(), "list.txt")
    assert values.tolist() == labels
    assert paths_of(listed) == expected


def test_each_number_is_what_python_reads_in_it_and_one_fraction_makes_all_of_them_floats() -> None:
    words = ["7", "-8", "+9", "007", "999999999999999999", "9223372036854775807", "-9223372036854775808"]
    text = "".join(f"a.jpg {word}\n" for word in words)
    assert parse_image_list(text.encode(), "list.txt")[1][:, 0].tolist() == list(map(int, words))
    words += ["1.5", "1e3", "9223372036854775808"]
    values = parse_image_list("".join(f"a.jpg {word}\n" for word in words).encode(), "list.txt")[1]
    assert values[:, 0].tolist() == list(map(float, words))


def test_a_line_may_be_long_and_the_last_one_may_have_no_end() -> None:
    path = "x" * 3000 + " y"
    listed, _ = parse_image_list(f"a.jpg 1\n{path} 2\n{path} 3".encode(), "list.txt")
    assert paths_of(listed) == ["a.jpg", path, path]


@pytest.mark.parametrize(
    ("labels", "options", "dtype", "shape"),
    [
        ("{position}", {}, "int64", ()),
        ("{position}.5", {}, "float32", ()),
        ("{position}", {"label_dtype": "float32"}, "float32", ()),
        ("{position}.0", {"label_dtype": "int64"}, "int64", ()),
        ("{position} 7", {}, "int64", (2,)),
        ("x {position}", {"labels": 1}, "int64", ()),
    ],
)
def test_labels_have_the_type_and_shape_that_they_are_written_in(
    tmp_path: Path, labels: str, options: dict[str, Any], dtype: str, shape: tuple[int, ...]
) -> None:
    path = write_list(tmp_path, {"a.png": encoded(noise(4, 4), ".png")}, labels)
    assert opened(path, check_files=False, **SIZE, **options).specs["label"] == ArraySpec(shape, np.dtype(dtype))


@pytest.mark.parametrize("label", [2**32, 2**60 + 1, 2**63 - 1])
@pytest.mark.parametrize("other", [0, -1, -(2**63)])
def test_large_labels_beside_negative_ones_are_not_rounded(tmp_path: Path, label: int, other: int) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"a.png {label}\nb.png {other}\n")
    assert samples(opened(path, ("label",), check_files=False, **SIZE))["label"] == [label, other]


def test_a_label_in_float64_keeps_its_fraction(tmp_path: Path) -> None:
    path = write_list(tmp_path, {"a.png": encoded(noise(4, 4), ".png")}, "1763793000.25")
    assert samples(opened(path, label_dtype="float64", **SIZE))["label"] == [1763793000.25]


def test_a_list_without_labels_has_no_label_top(tmp_path: Path) -> None:
    path = write_list(tmp_path, {"a.png": encoded(noise(4, 4), ".png")}, "")
    assert list(opened(path, **SIZE).specs) == ["data"]


def test_root_folder_goes_before_every_path_as_in_caffe(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(encoded(noise(4, 4), ".png"))
    (tmp_path / "list.txt").write_text("/a.png 1\na.png 2\n")
    source = opened(tmp_path / "list.txt", root_folder="images", **SIZE)
    first, second = samples(source)["data"]
    np.testing.assert_array_equal(first, second)


def test_a_path_need_not_be_text(tmp_path: Path) -> None:
    name = b"caf\xe9.png"
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(encoded(noise(4, 4), ".png"))
    (tmp_path / "list.txt").write_bytes(name + b" 1\n")
    assert samples(opened(tmp_path / "list.txt", **SIZE))["label"] == [1]
