"""Lists of JPEG and PNG files: the list, and reading, decoding and turning one picture."""

from __future__ import annotations

from .field import picture_field
from .file import WholeFiles
from .list_file import ListedImages, parse_image_list
from .options import LONGEST_SIDE_RATIO, ImageListOptions, PictureOptions, picture_options, require_like_first
from .source import open_image_list
