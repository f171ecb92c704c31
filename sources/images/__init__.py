"""Lists of JPEG and PNG files: the list, and reading, decoding and turning one picture."""

from __future__ import annotations

from .field import picture_field
from .list_file import ListedImages, finite_numbers, is_number, label_values, parse_image_list
from .options import (
    LONGEST_SIDE_RATIO,
    PICTURES,
    ImageListOptions,
    PictureOptions,
    picture_options,
    require_like_first,
    require_sizes,
)
from .source import open_image_list
