"""`open_image`: a picture from the bytes of a file, or from its path."""

import os

from PIL import Image

from .decoding import MAX_BYTES, ImageError, decode


def open_image(data: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Image.Image:
    """Decode a picture file.

    Parameters
    ----------
    data : the bytes of a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF file, or its path

    Returns
    -------
    Image in mode RGB, upright, in sRGB, transparency laid on white, the first frame of an
    animation, without metadata. One with a side over `LONG_SIDE` pixels is reduced to that.

    Raises
    ------
    ImageError
        When the bytes are of another kind, damaged, cut off or over a limit, or the file cannot be
        read.
    """
    if not isinstance(data, (str, os.PathLike)):
        return decode(data)
    try:
        size = os.stat(data).st_size
        if size > MAX_BYTES:
            raise ImageError(f"The file has {size:,} bytes; at most {MAX_BYTES:,} are read.")
        with open(data, "rb") as file:
            return decode(file.read())
    except OSError as error:
        raise ImageError(f"The file {os.fspath(data)} cannot be read: {error.strerror}.") from error
