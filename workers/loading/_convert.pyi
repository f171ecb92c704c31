from ...workers.api import AnyArray, IndexArray

def convert(
    values: AnyArray,
    begins: IndexArray | None,
    positions: IndexArray | None,
    out: AnyArray,
    mean: AnyArray | None,
    scale: AnyArray | None,
    corners: IndexArray | None,
    streams: bool,
    /,
) -> None:
    """Put `(value - mean) * scale` of the sample at values[begins[i]] into out[positions[i]], for all i.

    `values`: whole numbers or float32 in the machine's byte order, C-contiguous and aligned. `begins`, `positions`:
    int64, shape (rows,); None for one behind the other. `out`: float32, shape (rows, *sample shape), C-contiguous and
    aligned. `mean`, `scale`: float32, broadcast to the shape of a sample. `corners`: int64, shape (rows, 3), or None.
    With them `mean` has the shape (means, channels, height, width), and each row has a part of it: which mean, its
    part's top and left. `streams`: whether the results go past the caches.
    Without mean and scale bytes are copied as they are.

    Raises ValueError for other arrays, and IndexError for the first row that lies outside of its memory.
    """
