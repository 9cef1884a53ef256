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
    if isinstance(data, (str, os.PathLike)):
        data = _read(data)
    elif not isinstance(data, (bytes, bytearray, memoryview)):
        raise ImageError(
            "Expected a picture file's bytes or its path, got {kind}.", kind=type(data).__name__
        )
    _check_length(memoryview(data).nbytes)
    return decode(bytes(data))


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        _check_length(os.stat(path).st_size)
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ImageError(
            "The file {file} cannot be read: {reason}.", file=os.fspath(path), reason=error.strerror
        ) from error


def _check_length(count: int) -> None:
    if not count:
        raise ImageError("The file is empty: expected a picture, got 0 bytes.")
    if count > MAX_BYTES:
        raise ImageError(
            "The file has {count:,} bytes; at most {most:,} are read.", count=count, most=MAX_BYTES
        )
