"""Writes pictures.txt beside this script, or into the folder given: two photographs that scikit-learn ships, and what
is to be seen on them.

    python make_data.py [FOLDER]

A line is a picture and 4 boxes of 5 numbers each: left, top, right, bottom (pixels of the picture) and class. Lines of
equal length are what an image list wants, so boxes that are missing are -1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sklearn  # type: ignore[import-untyped]

TOWER, TREE, FLOWER = 1, 2, 3
MOST_BOXES = 4

BOXES = {
    "china.jpg": [(62, 29, 380, 426, TOWER), (545, 135, 639, 426, TREE), (330, 275, 572, 426, TREE)],
    "flower.jpg": [(168, 84, 447, 360, FLOWER), (287, 374, 468, 426, FLOWER)],
}


def main(folder: Path) -> None:
    pictures = Path(sklearn.__file__).parent / "datasets" / "images"
    lines = []
    for name, boxes in BOXES.items():
        numbers = [number for box in boxes for number in box] + [-1] * (5 * (MOST_BOXES - len(boxes)))
        lines.append(" ".join(map(str, [pictures / name, *numbers])))
    (folder / "pictures.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
