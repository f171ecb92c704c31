"""The top of encoded pictures, in any kind of source; OpenCV is imported if there is one."""

from __future__ import annotations

from collections.abc import Callable

from ...workers.base import need
from ..table import Field
from .options import PictureOptions, require_sizes


def picture_field(options: PictureOptions, what: str, first: Callable[[], bytes]) -> Field[bytes]:
    """Return the top of encoded pictures; `first` gives the first one, `what` begins messages.

    Raises ExtraMissing without OpenCV, ParameterError as `require_sizes`, ValueError for a first one that is none.
    """
    need("cv2", f"{what}, for its pictures,")
    require_sizes(options, what)
    from .decode import ImageDecoder

    decoder = ImageDecoder(options)
    return decoder.field(options.spec(lambda: decoder.decode(first())[1]))
