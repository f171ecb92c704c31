"""The order of tops that nobody has listed: by what their names say."""

from __future__ import annotations

import pytest
from blobfeed.sources.files.roles import decide_order, in_order


@pytest.mark.parametrize(
    ("names", "ordered", "decided"),
    [
        (["y", "X"], ("X", "y"), True),
        (["label", "tokens"], ("tokens", "label"), True),
        (["mask", "label", "image"], ("image", "label", "mask"), True),
        (["label", "attention_mask", "input_ids"], ("input_ids", "attention_mask", "label"), True),
        (["train/fine_label", "train/image"], ("train/image", "train/fine_label"), True),
        (["y_train", "x_train"], ("x_train", "y_train"), True),
        (["cls", "jpg"], ("jpg", "cls"), True),
        (["label", "x2", "x1"], ("x2", "x1", "label"), True),
        (["label", "words", "image"], ("image", "label", "words"), False),
        (["label", "words"], ("words", "label"), False),
        (["right", "left"], ("right", "left"), False),
        (["image_id", "image"], ("image", "image_id"), False),
        (["left"], ("left",), True),
    ],
)
def test_names_decide_where_they_say_what_they_are(names: list[str], ordered: tuple[str, ...], decided: bool) -> None:
    assert in_order(names) == ordered
    assert decide_order(names) is decided
