from ...workers.api import AnyArray

def decode_part(data: bytes, out: AnyArray, by: int, part: tuple[int, int, int, int], /) -> bool:
    """Decode a part of a JPEG into its place in `out`; return false for a file that libjpeg-turbo finds fault with.

    `out`: uint8, C-contiguous, of the shape (height, width, channels) of the whole picture divided by `by` (1, 2, 4 or
    8) and rounded up: 3 channels for blue, green and red, or 1 for gray. What lies beside the part is overwritten in
    parts, too. `part`: top, left, height and width. The pixels are those of a whole decode.

    Raises ValueError for memory or a part that does not fit.
    """
