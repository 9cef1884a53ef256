"""`open_image`: open a picture from the bytes of a file, or from its path."""

import os
from typing import cast

from PIL import Image

from .decoding import MAX_FILE_BYTES, ImageError, decode


def open_image(data: bytes | bytearray | memoryview | str | os.PathLike[str]) -> Image.Image:
    """Decode a picture file.

    Parameters
    ----------
    data : the bytes of a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF file, or its path

    Returns
    -------
    Image in mode RGB: upright, in sRGB, transparency on white, the first frame of an animation,
    without metadata. A picture with a side above `LONG_SIDE` pixels is reduced to it.

    Raises
    ------
    ImageError
        When the bytes are of another format, damaged, cut off or above a limit, or the file cannot
        be read.
    """
    return decode(read_file(data))


def read_file(data: bytes | bytearray | memoryview | str | os.PathLike[str]) -> bytes:
    """Return the bytes of a picture file, given by its path or its bytes.

    Raises
    ------
    ImageError
        When the file cannot be read, is empty or too large.
    """
    if isinstance(data, (str, os.PathLike)):
        path = data
        try:
            _check_length(os.stat(path).st_size)
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            reason = error.strerror
            raise ImageError(
                "The file {file} cannot be read: {reason}.", file=os.fspath(path), reason=reason
            ) from error
    elif not isinstance(data, (bytes, bytearray, memoryview)):
        raise ImageError(
            "Expected a picture file's bytes or its path, got {kind}.", kind=type(data).__name__
        )
    _check_length(memoryview(data).nbytes)
    return bytes(data)


def _check_length(count: int) -> None:
    if not count:
        raise ImageError("The file is empty: expected a picture, got 0 bytes.")
    if count > MAX_FILE_BYTES:
        raise ImageError(
            "The file has {count:,} bytes; at most {most:,} are read.",
            count=count,
            most=MAX_FILE_BYTES,
        )


def require_eight_bits(image: Image.Image) -> None:
    """Raise an ImageError if the values of a grey picture are no levels from 0 to 255.

    Pillow converts deeper modes to RGB by clipping, so that 16 bits become white.
    """
    if image.mode[0] not in "IF":
        return
    values = image if image.mode == "F" else image.convert("I")  # I;16B knows no extrema
    low, high = cast(tuple[float, float], values.getextrema())
    is_share = image.mode == "F" and 0 < high <= 1
    if not 0 <= low <= high <= 255 or is_share:
        raise ImageError(
            "The picture has mode {mode} with values from {low:g} to {high:g}, expected levels "
            "from 0 to 255. Scale it, or give the path or bytes of its file.",
            mode=image.mode,
            low=low,
            high=high,
        )
