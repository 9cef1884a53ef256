"""Decode uploaded bytes, which are not trusted, to an upright RGB picture.

In JPEG and PNG, the formats of nearly all uploads, what can exhaust memory or time lies around the
compressed pixels: a bounded parser drops it before Pillow reads the file. In other formats it lies
in the compressed data, where no header shows it; they are decoded in a subprocess, under limits of
time and memory that the operating system enforces.
The subprocess runs only this file, so it imports nothing of vitviz. Modules that few pictures need
are imported where they are needed: imports take longer than reading most pictures.
"""

import io
import math
import re
import signal
import struct
import sys
import time
import zlib
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

from PIL import Image

MAX_FILE_BYTES = 25_000_000
MAX_PICTURE_SIDE = 30_000
MAX_SCANS = 64
#: Larger pictures are reduced to this side: models read 200 to 600 pixels, pages show few more.
LONG_SIDE = 2048
#: Each scan of a JPEG visits every coefficient: 0.7 ns a pixel, 0.9 s in all.
_MAX_SCANNED_PIXELS = 1_200_000_000
#: Segments of a JPEG or chunks of a PNG; Pillow takes up to 20 microseconds for each.
_MAX_PARTS = 20_000
#: Bytes of an XMP block that are searched, and decompressed.
_MAX_XMP = 1_000_000
_SECONDS = 2
_MEMORY = 500_000_000


class ImageError(ValueError):
    """The bytes cannot be read as a picture, for the reason in the message.

    It is translated as `vitviz.common.language.Message` is, which this file cannot import.
    """

    def __init__(self, english: str, /, **values: Any) -> None:
        super().__init__(english.format(**values) if values else english)
        self.english, self.values = english, values


def decode(data: bytes) -> Image.Image:
    """Decode a file's bytes as `open_image` describes, or raise an `ImageError`."""
    name = _recognise(data)
    return _decode(data, name) if name in _TRIMMED else _decode_in_subprocess(data, name)


#: Formats that are read, and the largest number of pixels, limited by memory. JPEG is decoded at
#: reduced size; a PNG with transparency needs two copies with 4 bytes a pixel.
_MAX_PIXELS = {"JPEG": 120_000_000, "PNG": 50_000_000} | dict.fromkeys(
    ("GIF", "BMP", "TIFF", "WebP", "AVIF"), 32_000_000
)
#: Bytes of the coefficients of a JPEG in several scans, all kept until the last scan.
_MAX_COEFFICIENTS = 330_000_000


def _open_by_plugin(data: bytes, name: str) -> Image.Image:
    """Open by Pillow's plugin for this format only.

    `Image.open` would warn about large pictures before their size can be checked.
    """
    name = name if name == "WebP" else name.title()
    plugin: Any = import_module(f"PIL.{name}ImagePlugin")
    if name == "WebP":
        return _open_still_webp(plugin, data)
    picture: Image.Image = getattr(plugin, f"{name}ImageFile")(io.BytesIO(data))
    return picture


def _open_still_webp(plugin: Any, data: bytes) -> Image.Image:
    """Open the first frame of a WebP; Pillow keeps two copies (8 bytes a pixel) for the next."""

    class StillWebP(plugin.WebPImageFile):  # type: ignore[misc]
        def _get_next(self) -> tuple[bytes, int, int]:
            frame: tuple[bytes, int, int] = super()._get_next()
            self._decoder = None
            return frame

    return StillWebP(io.BytesIO(data))


_TRIMMED = ("JPEG", "PNG")

#: Magic numbers; the first match counts. Formats missing in `_MAX_PIXELS` are refused by name.
_SIGNATURES = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM",
    "Camera RAW": rb"II\*\0.{4}CR|II[UR]|MMOR|FUJIFILMCCD-RAW|FOVb|.{4}ftypcrx",
    "TIFF": rb"II\*\0|MM\0\*|II\+\0|MM\0\+",
    "WebP": rb"RIFF.{4}WEBP",
    "AVIF": rb".{4}ftyp(.{4})*?avi[fs]",
    "HEIC": rb".{4}ftyp(.{4})*?(hei|hev|mif1|msf1)",
    "Video": rb".{4}ftyp|\x1a\x45\xdf\xa3|RIFF.{4}AVI|\0\0\x01\xba",
    "PDF": rb"%PDF",
    "EPS": rb"%!PS|\xc5\xd0\xd3\xc6",
    "PSD": rb"8BPS",
    "JPEG 2000": rb"\0\0\0\x0cjP|\xff\x4f\xff\x51",
    "JPEG XL": rb"\0\0\0\x0cJXL|\xff\x0a",
    "ICO": rb"\0\0\x01\0",
    "ZIP": rb"PK\x03\x04",
    "HTML": rb"(?i)[^\0]{,99}<(!doctype )?html",
    "SVG": rb"[^\0]*<svg",
    "Text": rb"[^\0-\x08\x0e-\x1a\x1c-\x1f\x7f]+\Z",
}


#: Formats of files that are not photos, and may lie in a folder of pictures.
_NO_PHOTOS = {"Video", "PDF", "EPS", "ICO", "ZIP", "HTML", "SVG", "Text"}


def is_photo(head: bytes) -> bool:
    """Whether a file with these first bytes is a photo, even if its format is not read."""
    name = _detect_format(head)
    # "BM" may begin any text; in a BMP, four zeros follow the length.
    return name not in (None, *_NO_PHOTOS) and (name != "BMP" or head[6:10] == bytes(4))


def _detect_format(data: bytes) -> str | None:
    head = data[:1024]
    signatures = _SIGNATURES.items()
    return next((name for name, start in signatures if re.match(start, head, re.DOTALL)), None)


def _recognise(data: bytes) -> str:
    name = _detect_format(data)
    if name is None:
        raise ImageError(
            "The format of the file is unknown. Give a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF."
        )
    if name not in _MAX_PIXELS:
        raise ImageError("{name} is not supported. Export the picture as JPEG or PNG.", name=name)
    return name


def _check_size(name: str, size: tuple[int, int], most: float = math.inf) -> None:
    width, height = size
    most = min(most, _MAX_PIXELS[name])
    if max(size) > MAX_PICTURE_SIDE:
        raise ImageError(
            "The {name} has {width:,} x {height:,} pixels; at most {most:,} a side are read.",
            name=name,
            width=width,
            height=height,
            most=MAX_PICTURE_SIDE,
        )
    if width * height > most:
        raise ImageError(
            "The {name} has {pixels:,} pixels ({width:,} x {height:,}); at most {most:,} are read.",
            name=name,
            pixels=width * height,
            width=width,
            height=height,
            most=int(most),
        )


#: Markers that end a JPEG's compressed data; not a stuffed zero, a restart or a fill byte.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
#: Frame, Huffman tables, scan, quantisation, restarts, JFIF, Adobe; and ICC_PROFILE, by its name.
_KEPT_SEGMENTS = (0xC0, 0xC1, 0xC2, 0xC4, 0xDA, 0xDB, 0xDD, 0xE0, 0xEE)


def _trim_jpeg(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the segments that are needed to decode the pixels, the EXIF and the XMP block."""
    parts, exif, xmp, scans, end, size = [data[:2]], b"", b"", 0, 2, (0, 0)
    progressive, samples = False, 3.0  # numbers a pixel
    for _ in range(_MAX_PARTS):
        match = _MARKER.search(data, end)
        if match is None:
            raise ImageError("The JPEG is cut off: its end marker is missing.")
        start, marker = match.start(), data[match.start() + 1]
        if scans:
            parts.append(data[end:start])
        if marker == 0xD9:
            break
        end = start + 2 + int.from_bytes(data[start + 2 : start + 4])
        body = data[start + 4 : min(end, start + 18)]
        if marker in range(0xC3, 0xD0) and marker not in (0xC4, 0xC8, 0xCC):
            raise ImageError("This JPEG is lossless or arithmetic, expected an ordinary one.")
        if marker in (0xC0, 0xC1, 0xC2):
            height, width = struct.unpack_from(">HH", body, 1)
            size = (max(size[0], width), max(size[1], height))
            progressive |= marker == 0xC2
            samples = _count_samples(data[start + 9 : end])
        if marker == 0xE1 and body.startswith(b"Exif\0\0"):
            exif = exif or data[start + 4 : end]
        if marker == 0xE1 and data.startswith(b"http://ns.adobe.com/xap/1.0/\0", start + 4):
            xmp = xmp or data[start + 4 : end]
        if marker in _KEPT_SEGMENTS or (len(body) == 14 and body.startswith(b"ICC_PROFILE\0")):
            parts.append(data[start:end])
        scans += marker == 0xDA
    else:
        raise ImageError(
            "The JPEG has too many segments: at most {most:,} are read.", most=_MAX_PARTS
        )
    in_parts = progressive or scans > 1
    _check_size("JPEG", size, _MAX_COEFFICIENTS / (2 * samples) if in_parts else math.inf)
    if scans > (limit := min(MAX_SCANS, _MAX_SCANNED_PIXELS // (size[0] * size[1] or 1))):
        raise ImageError(
            "The JPEG has {scans} scans; at its size at most {limit} are read.",
            scans=scans,
            limit=limit,
        )
    return b"".join(parts) + b"\xff\xd9", exif, xmp


def _count_samples(frame: bytes) -> float:
    """Return the numbers a pixel of a JPEG: 3 in full colour, fewer with coarser colours."""
    factors = [(one >> 4) * (one & 15) for one in frame[2 : 1 + 3 * frame[0] : 3]] if frame else []
    return sum(factors) / (max(factors, default=0) or 1) or 4.0


def _trim_png(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return one of each needed chunk, EXIF and XMP, without the frames of an animation."""
    parts, exif, xmp, end = [data[:8]], b"", b"", 8
    missing = {b"IHDR", b"PLTE", b"tRNS", b"iCCP"}
    for _ in range(_MAX_PARTS):
        start = end
        length, kind = struct.unpack(">I4s", data[start : start + 8].ljust(8, b"\xff"))
        end = start + 12 + length
        if end > len(data):
            raise ImageError("The PNG is cut off: its last chunk is not complete.")
        if kind in missing or kind in (b"IDAT", b"IEND"):
            parts.append(data[start:end])
            missing.discard(kind)
        if kind == b"eXIf":
            exif = data[start + 8 : end - 4]
        if kind == b"iTXt" and data.startswith(b"XML:com.adobe.xmp\0", start + 8):
            xmp = xmp or _read_text_chunk(data[start + 26 : end - 4])
        if kind == b"IEND":
            return b"".join(parts), exif, xmp
    raise ImageError("The PNG has too many chunks: at most {most:,} are read.", most=_MAX_PARTS)


def _read_text_chunk(body: bytes) -> bytes:
    """Return the text of an iTXt chunk after its keyword, up to the searched length."""
    text = body[2:].split(b"\0", 2)[-1]  # after a language and a translated keyword
    if body[:1] != b"\1":
        return text
    with suppress(zlib.error):
        return zlib.decompressobj().decompress(text, _MAX_XMP)
    return b""


def _decode(data: bytes, name: str) -> Image.Image:
    try:
        return _decode_upright(data, name)
    except ImageError:
        raise
    except Image.DecompressionBombError as error:
        limit = _MAX_PIXELS[name]
        raise ImageError(
            "The {name} has far more than the {limit:,} pixels read.", name=name, limit=limit
        ) from error
    except MemoryError as error:
        raise ImageError(
            "The {name} takes more memory than there is to read.", name=name
        ) from error
    except Exception as error:  # broken files make Pillow raise nearly anything
        raise ImageError(
            "The {name} cannot be read: it is damaged, cut off or of an unusual sort.", name=name
        ) from error


def _decode_upright(data: bytes, name: str) -> Image.Image:
    exif = xmp = b""
    if name in _TRIMMED:
        data, exif, xmp = (_trim_jpeg if name == "JPEG" else _trim_png)(data)
    picture = _open_by_plugin(data, name)
    _check_size(name, picture.size)
    if name == "JPEG":
        ratio = min(1.0, LONG_SIDE / max(picture.size))
        width, height = (math.ceil(side * ratio) for side in picture.size)
        picture.draft(None, (width, height))
    picture.load()
    if name == "TIFF":
        _refuse_raw(picture)  # Pillow has turned it upright
    turn = _orientation(exif or picture.info.get("exif", b""))
    turn = turn or _xmp_orientation(xmp or picture.info.get("xmp", b""))
    profile = picture.info.get("icc_profile")
    is_grey = Image.getmodebase(picture.mode) == "L"
    picture = _to_eight_bit(picture, data)
    picture = _shrink(picture)
    upright = Image.new("RGB", picture.size, "white")
    alpha = picture.getchannel("A") if picture.mode == "RGBA" else None
    upright.paste(_to_srgb(picture, profile, is_grey), mask=alpha)
    return upright.transpose(_TURNS[turn]) if turn in _TURNS else upright


def _to_eight_bit(picture: Image.Image, data: bytes) -> Image.Image:
    """Convert to L, RGB, RGBA, CMYK or LAB; values deeper than 8 bits are scaled, not clipped."""
    mode, transparency = picture.mode, picture.info.get("transparency")
    if picture.format == "PNG" and mode in ("L", "I;16", "RGB"):
        transparency = _to_eight_bit_colour(transparency, depth=data[24])
    if mode[0] in "IF":
        picture = _to_eight_bit_grey(picture)
    if transparency is not None:
        picture.info["transparency"] = transparency
        return picture.convert("RGBA")
    if mode in ("La", "LA", "PA", "RGBa"):
        return (picture.convert("LA") if mode == "La" else picture).convert("RGBA")
    return picture if picture.mode in ("L", "RGBA", "CMYK", "LAB") else picture.convert("RGB")


def _to_eight_bit_colour(colour: object, depth: int) -> object:
    """Convert a PNG's transparent colour from its own depth to Pillow's 8 bits."""
    if isinstance(colour, tuple):
        return tuple(value >> (depth - 8) for value in colour)
    return round(colour * 255 / (2**depth - 1)) if isinstance(colour, int) else colour


def _to_eight_bit_grey(picture: Image.Image) -> Image.Image:
    """Scale grey: white is the full 12 or 16 bits, or the smallest usual maximum that fits."""
    tags = cast(Any, picture).tag_v2 if picture.format == "TIFF" else {}
    twelve, is_white_zero = tags.get(258) == (12,), tags.get(262) == 0
    usual = {"F": (1.0,), "I": (255.0, 65535.0)}.get(picture.mode, (4095.0 if twelve else 65535.0,))
    picture = _shrink(picture if picture.mode in "IF" else picture.convert("I"))
    low, high = cast(tuple[float, float], picture.getextrema())
    if not math.isfinite(high - low):
        low, high = 0.0, 1.0
    low, high = next(((0.0, top) for top in usual if low >= 0 and high <= top * 1.001), (low, high))
    scale = 255 / (high - low) if high > low else 0.0
    picture = picture.convert("F").point(lambda value: value * scale + (0.5 - low * scale))
    picture = picture.convert("L")
    # Pillow itself inverts such TIFFs with up to 8 bits, and no deeper ones.
    return picture.point(lambda level: 255 - level) if is_white_zero else picture


def _shrink(picture: Image.Image) -> Image.Image:
    if (factor := max(picture.size) // LONG_SIDE) > 1:
        picture = picture.reduce(factor)
    if max(picture.size) > LONG_SIDE:
        # A filter without negative weights keeps the range of floats.
        picture.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.HAMMING)
    return picture


def _to_srgb(picture: Image.Image, profile: bytes | None, is_grey: bool) -> Image.Image:
    """Convert to sRGB by the embedded profile; a broken profile is ignored."""
    if picture.mode == "RGBA":
        # Grey with transparency is RGBA by now, to which a profile of grey cannot be applied.
        one = is_grey and profile and profile[16:20] == b"GRAY"
        picture = picture.getchannel("R") if one else picture.convert("RGB")
    # "mpet" is a program of any length, run for each colour; cameras and editors write none.
    if profile and b"mpet" not in profile:
        from PIL import ImageCms

        srgb = ImageCms.createProfile("sRGB")
        with suppress(ImageCms.PyCMSError):
            result = ImageCms.profileToProfile(picture, io.BytesIO(profile), srgb, outputMode="RGB")
            if result is not None:
                return result
    return picture.convert("RGB")


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(exif: bytes) -> int:
    """Return tag 274 of the first EXIF directory, or 0; Pillow would read all directories."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = ">" if tiff.startswith(b"MM") else "<"
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for offset in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, short = struct.unpack_from(order + "HHIH", tiff, offset)
            if (tag, kind) == (274, 3):
                return int(short)
    except struct.error:
        pass  # broken EXIF is common
    return 0


def _xmp_orientation(xmp: bytes) -> int:
    """Return the orientation in XMP, which some editors write instead of EXIF; or 0."""
    match = re.search(rb"""tiff:Orientation(?:\s*=\s*["']|>)\s*([1-8])""", xmp[:_MAX_XMP])
    return int(match[1]) if match else 0


def _refuse_raw(picture: Any) -> None:
    tags = picture.tag_v2
    if 50706 in tags or (330 in tags and tags.get(254, 0) & 1):  # DNG; a preview, as in NEF
        raise ImageError("Camera RAW is not supported. Export the picture as JPEG or PNG.")


def _decode_in_subprocess(data: bytes, name: str) -> Image.Image:
    """Run `_decode` in a subprocess, which the system ends if it takes too much time or memory."""
    import subprocess

    too_much = ImageError(
        "The {name} takes more than {seconds} s or {most} MB to read.",
        name=name,
        seconds=_SECONDS,
        most=_MEMORY // 10**6,
    )
    command = [sys.executable, "-P", __file__, name]  # -P: import nothing from this folder
    try:
        child = subprocess.run(command, input=data, capture_output=True, timeout=30, check=False)
    except subprocess.TimeoutExpired as error:
        raise too_much from error
    except OSError as error:
        raise ImageError("No process could be started to read the {name}.", name=name) from error
    if child.returncode:
        raise too_much
    head, _, pixels = child.stdout.partition(b"\n")
    if not pixels:
        import json

        english, values = json.loads(head)
        raise ImageError(english, **values)
    width, height = map(int, head.split())
    return Image.frombytes("RGB", (width, height), pixels)


def _main(name: str) -> None:
    """Run as the subprocess of `_decode_in_subprocess`: write size and pixels, or an error."""
    if sys.platform != "win32":  # on Windows, only the parent's timeout applies
        # Processor time, less what this process and the parent have spent.
        seconds = max(0.5, _SECONDS - 0.2 - time.process_time())
        signal.setitimer(signal.ITIMER_PROF, seconds)
    if sys.platform == "linux":  # macOS does not enforce it
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    if name == "AVIF":
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # each thread reserves memory
    try:
        image = _decode(sys.stdin.buffer.read(), name)
        answer = f"{image.width} {image.height}\n".encode() + image.tobytes()
    except ImageError as error:
        import json

        answer = json.dumps([error.english, error.values]).encode()
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    _main(sys.argv[1])
