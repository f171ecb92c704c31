"""Files of which each is a sample, and one is not as the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.catalogue import Scenario, scenario
from tests.support.stored import opened


@scenario
def files(
    folder: Path,
    /,
    change: Callable[[Path], object] = lambda _: None,
    tops: Any = None,
    path: Any = "*/*.npz",
    **options: Any,
) -> Any:
    """Three archives in the folders `cat` and `dog`, opened after `change` got the folder above."""
    for number in range(3):
        file = folder / ("dog" if number else "cat") / f"s{number}.npz"
        file.parent.mkdir(exist_ok=True)
        np.savez(file, x=np.ones((2, 3), np.float32), y=number)
        np.save(file.with_suffix(".npy"), np.ones((2, 3)))
    change(folder)
    return opened("files", folder, tops, path=path, **options)


def other(name: str = "s1.npz", **arrays: Any) -> Callable[[Path], object]:
    """The second file has other arrays."""
    return lambda folder: np.savez(folder / "dog" / name, **arrays)


def table(text: str, **options: Any) -> Scenario:
    return files(lambda folder: (folder / "t.csv").write_text(text), labels="t.csv", **options)


SCENARIOS = {
    "files, none": files(path="*.none"),
    "files, a folder": files(path="cat"),
    "files, absent": files(path="none.npz"),
    "files, an unknown format": files(format="dcm"),
    "files, arrays of .npy": files(path="*/*.npy", arrays={"data": "x"}),
    "files, classes without labels": files(classes=["cat"]),
    "files, an unknown array": files(arrays={"data": "z"}),
    "files, an unknown top": files(tops=["lable"]),
    "files, shapes of an unknown top": files(max_shapes={"data": [4]}),
    "files, shapes of other axes": files(max_shapes={"x": [4]}),
    "files, two labels": files(arrays={"label": "y"}, labels="folder"),
    "files, another array": files(other(z=np.ones((2, 3), np.float32), y=1)),
    "files, another shape": files(other(x=np.ones((2, 4), np.float32), y=1)),
    "files, too large": files(other(x=np.ones((2, 4), np.float32), y=1), max_shapes={"x": [2, 3]}),
    "files, another type": files(other(x=np.ones((2, 3)), y=1)),
    "files, objects": files(other(x=np.array([{}]), y=1)),
    "files, the first holds objects": files(lambda folder: np.savez(folder / "cat/s0.npz", x=np.array([{}]))),
    "files, no archive": files(lambda folder: (folder / "dog/s1.npz").write_bytes(b"no such format" * 9)),
    "files, gone": files(
        lambda folder: (folder / "dog/s2.npz").rename(folder / "gone"), path=["cat/s0.npz", "dog/s2.npz"]
    ),
    "files, bytes that are too long": files(format="bytes", max_length=9),
    "files, pictures that are none": files(format="pictures", equal_sizes=True),
    "files, pictures of no size": files(format="pictures"),
    "files, labels by no expression": files(labels="(s"),
    "files, labels by no group": files(labels="s1"),
    "files, a name without its label": files(labels=r"s([01])"),
    "files, a label that is no number": files(
        lambda folder: (folder / "dog/s1.npz").rename(folder / "dog/sx.npz"), labels=r"s(.)\."
    ),
    "files, an unknown class": files(labels="folder", classes=["cat", "dogs"]),
    "files, a label that no type holds beside others": files(
        lambda folder: (folder / "dog/s1.npz").rename(folder / "dog/s16777217.5.npz"), labels=r"s(.+)\.npz"
    ),
    "files, no table": files(labels="none.csv"),
    "files, a table without a file": table("path,label\ns0.npz,1\n"),
    "files, a table of three columns": table("cat/s0.npz,1,2\n"),
    "files, a table with two labels": table("s0.npz,1\ns0.npz,2\n"),
    "files, a table with one name for two": table(
        "s0.npz,1\ns1.npz,1\ns2.npz,1\n", path=["cat/s0.npz", "dog/*.npz", "./dog/../cat/s0.npz"]
    ),
}
