"""Lists of pictures that are wrong, and pictures that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.catalogue import Scenario, scenario
from tests.support.pictures import encoded, noise, picture, write_list
from tests.support.stored import opened

SIZE: dict[str, Any] = {"new_height": 48, "new_width": 64}
CHINA, FLOWER = "china.jpg", "a flower.png"


@scenario
def listed(
    folder: Path,
    /,
    change: Callable[[Path], object] = lambda _: None,
    tops: Any = None,
    path: str = "list.txt",
    **options: Any,
) -> Any:
    """Two pictures, opened after `change` got the folder. Without options, those of SIZE."""
    write_list(folder, {CHINA: encoded(picture(96, 128)), FLOWER: encoded(noise(50, 40), ".png")})
    change(folder)
    return opened("image_list", folder, tops, path=path, **(options or SIZE))


def lines(text: str | bytes, **options: Any) -> Scenario:
    content = text if isinstance(text, bytes) else text.encode()
    return listed(lambda folder: (folder / "list.txt").write_bytes(content), **SIZE, **options)


def china(content: bytes | Callable[[bytes], bytes], **options: Any) -> Scenario:
    """The first picture is damaged, and not looked at in setup."""

    def change(folder: Path) -> None:
        path = folder / CHINA
        path.write_bytes(content(path.read_bytes()) if callable(content) else content)

    return listed(change, check_files=False, **SIZE, **options)


def ends_early(suffix: str) -> Scenario:
    content = encoded(picture(60, 80), suffix)
    return china(content[: len(content) * 2 // 3])


def _overwritten(content: bytes) -> bytes:
    return content[: len(content) // 2] + b"\xff\xd3" * 20 + content[len(content) // 2 + 40 :]


def _huge(content: bytes) -> bytes:
    at = content.index(b"\xff\xc0") + 5  # the height in the frame header, the width behind it
    return content[:at] + b"\xff\xf0\xff\xf0" + content[at + 4 :]


def _a_folder(folder: Path) -> None:
    (folder / CHINA).unlink()
    (folder / CHINA).mkdir()


def _another_size(folder: Path) -> None:
    (folder / FLOWER).write_bytes(encoded(noise(96, 127), ".png"))


SCENARIOS = {
    "image_list, absent": listed(path="none.txt"),
    "image_list, missing pictures": lines(f"{CHINA} 0\n\nnone.jpg 3\nneither.jpg 4\n"),
    "image_list, a missing picture, not checked": lines(f"{CHINA} 0\n\nnone.jpg 3\n", check_files=False),
    "image_list, the name of a class": lines("china.jpg cat\nflower.jpg dog\n"),
    "image_list, a label where none is": lines("china.jpg 0\n", labels=0),
    "image_list, nothing": lines(""),
    "image_list, comments": lines("# nothing\n\n"),
    "image_list, UTF-16": lines("a.jpg 1\r\n".encode("utf-16")),
    "image_list, a word among labels": lines("a.jpg 1\n\nb.jpg cat\n"),
    "image_list, nan": lines("a.jpg 1 2\nb.jpg 1 nan\n"),
    "image_list, an underscore": lines("a.jpg 1\nb.jpg 2_0\n"),
    "image_list, a label is missing": lines("a.jpg 1\nb.jpg\nc.jpg 2"),
    "image_list, no labels": lines(f"{CHINA}\n", tops=("data", "label")),
    **{
        f"image_list, {label} as {dtype}": lines(f"{CHINA} {label}\n", label_dtype=dtype)
        for label, dtype in {
            "16777217": "float32",
            "0.5": "int64",
            "1e39": "float32",
            "1e30": "int64",
            "1763793000.25": "float32",
            "16777217 0.5": "float32",
            "99999999999999999999": "float64",
            "9007199254740993 2.0": "int64",
        }.items()
    },
    "image_list, an empty file": listed(lambda folder: (folder / CHINA).write_bytes(b"")),
    "image_list, a folder": listed(_a_folder),
    "image_list, a folder for the list": listed(path="."),
    "image_list, equal_sizes and max_height": listed(equal_sizes=True, max_height=4),
    "image_list, no size": listed(strict=True),
    "image_list, a height alone": listed(lambda folder: (folder / CHINA).unlink(), new_height=10),
    "image_list, two ways to a size": listed(new_height=10, new_width=10, shorter_side=5),
    "image_list, an unknown colour": listed(color="hsv", **SIZE),
    "image_list, larger than declared": listed(max_height=60),
    "image_list, unequal sizes": listed(_another_size, equal_sizes=True),
    "image_list, a damaged JPEG": china(_overwritten),
    "image_list, gigabytes": china(_huge),
    **{
        f"image_list, {suffix} that ends early": ends_early(suffix)
        for suffix in (".jpg", ".png", ".bmp", ".tiff", ".webp")
    },
    **{
        f"image_list, {name}": china(content)
        for name, content in {
            "no bytes": b"",
            "text": b"text",
        }.items()
    },
}
