"""`blobfeed params NAME` for a name that lies deeper, and for one that is none."""

from __future__ import annotations

from itertools import pairwise

import pytest
from blobfeed.tools.parameters import as_text


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("crop_size", ["transform"]),
        ("scale", ["transform", "random_resized_crop"]),
        ("mean_value", ["transform"]),
        ("new_height", ["source: {files: …}", "source: {image_list: …}", "source: {tar: …}", "source: {parquet: …}"]),
        ("label_dtype", ["source: {image_list: …}"]),
        ("to_multiple_of", ["pad"]),
    ],
)
def test_an_option_is_explained_under_each_heading_that_has_it(name: str, heads: list[str]) -> None:
    lines = as_text(name).splitlines()
    assert [head for head, line in pairwise(lines) if line.startswith(f"  {name}: ")] == heads


def test_a_part_is_explained_above_those_who_have_it_and_a_hook_by_its_method() -> None:
    window, above, first = as_text("window").partition("source: {hdf5: …}")
    assert "length: the number of steps in a window" in window
    assert above
    assert "see `window` above" in first
    assert "size: height and width of the result" in as_text("random_resized_crop")
    assert "Turn one raw sample into its row of each top" in as_text("decode")


def test_what_only_a_text_names_is_explained_by_that() -> None:
    assert as_text("weights").startswith("sampler: chooses the samples of an epoch: {weights: FILE")


def test_what_the_other_keys_of_a_source_are_is_said_before_its_options() -> None:
    assert "source: {npy: …}\n  Every other key is a top" in as_text("npy")
