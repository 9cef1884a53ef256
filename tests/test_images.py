"""Pictures that are made here, in memory: of every kind, turned, deep, damaged and hostile."""

import functools
import io
import math
import random
import re
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from examples import patch_box
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageCms, ImageFile, ImageOps, PngImagePlugin
from timm.data import create_transform

from vitviz.common.images import (
    LONG_SIDE,
    MAX_FILE_BYTES,
    ImageError,
    decoding,
    fit,
    open_image,
    patch_mask,
    place,
)

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
COLOUR = (200, 30, 60)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(mode: str = "RGB", colour: object = COLOUR) -> Image.Image:
    return Image.new(mode, (40, 30), colour)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=20)
def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3))
    small = Image.fromarray(noise.astype(np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def corner(data: bytes) -> tuple[int, ...]:
    pixel = open_image(data).getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return pixel


def refusal(data: object) -> str:
    with pytest.raises(ImageError) as caught:
        open_image(data)  # type: ignore[arg-type]
    return sentence(caught.value)


def sentence(error: ImageError) -> str:
    text = str(error)
    assert re.fullmatch(r"\S[^\n]*[^.]\.", text), text
    return text


# Kinds of file


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_opens_as_a_plain_rgb_picture(kind: str) -> None:
    image = open_image(saved(plain(), kind))
    assert type(image) is Image.Image
    assert (image.mode, image.size, image.info) == ("RGB", (40, 30), {})
    assert image.getexif() == {}
    assert np.abs(np.asarray(image).astype(int) - COLOUR).max() <= 3


BOX = b"\0\0\0\x18ftyp"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (BOX + b"heic\0\0\0\0mif1heic", "HEIC"),
        (BOX + b"mif1\0\0\0\0mif1heic", "HEIC"),
        (BOX + b"isom\0\0\0\0isommp42", "Video"),
        (b"RIFF\0\0\0\0AVI LIST", "Video"),
        (BOX + b"crx \0\0\0\1crx isom", "Camera RAW"),
        (b"II*\0\x10\0\0\0CR\2\0", "Camera RAW"),
        (b"%PDF-1.7\n", "PDF"),
        (b"%!PS-Adobe-3.0", "EPS"),
        (b"8BPS\0\1", "PSD"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JPEG XL"),
        (b"\xff\x0a\xfa\x1f", "JPEG XL"),
        (b"\0\0\1\0\1\0\x10\x10", "ICO"),
        (b"PK\3\4\x14\0", "ZIP"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg">', "SVG"),
        (b"\xef\xbb\xbf<svg/>", "SVG"),
        (b"<!DOCTYPE html><title>Not found</title>", "HTML"),
        (b"Ein Brief, kein Bild.\n", "Text"),
    ],
)
def test_other_kinds_are_refused_by_name(data: bytes, name: str) -> None:
    assert refusal(data) == f"{name} is not supported. Export the picture as JPEG or PNG."


def test_what_is_no_picture_that_is_read_is_refused() -> None:
    assert "format of the file is unknown" in refusal(bytes(100))
    assert "got 0 bytes" in refusal(b"")
    assert "format of the file" in refusal(saved(plain(), "TGA"))  # which Pillow would open
    dng = saved(plain(), "TIFF", tiffinfo={50706: b"\1\4\0\0"})
    assert refusal(dng).startswith("Camera RAW")
    for other in (None, 7, [1, 2]):
        assert refusal(other).startswith("Expected a picture file's bytes or its path, got ")


# Limits


def test_limits_name_the_limit_and_the_number() -> None:
    text = refusal(bytes(MAX_FILE_BYTES + 1))
    assert "25,000,001" in text
    assert "25,000,000" in text
    assert refusal(png(30_001, 1, 8, 0)).startswith("The PNG has 30,001 x 1 pixels; at most 30,000")
    assert "55,000,000 pixels" in refusal(png(11_000, 5_000, 8, 0))
    assert "121,000,000 pixels" in refusal(jpeg_of(11_000, 11_000))
    webp = bytearray(saved(plain(), "WEBP", lossless=True))
    struct.pack_into("<I", webp, 21, 6600 - 1 | 5000 - 1 << 14)
    assert "33,000,000 pixels" in refusal(webp)


@pytest.mark.parametrize("size", [(8160, 6144), (16_382, 3_628)])
def test_phones_of_50_megapixels_and_panoramas_are_read(size: tuple[int, int]) -> None:
    """They are decoded smaller, and take as much memory as other pictures."""
    width, height = size
    shown = open_image(jpeg_of(width, height))
    assert shown.width == 2048
    assert shown.height == pytest.approx(2048 * height / width, abs=6)


def test_scans_that_are_kept_until_the_last_one_have_a_limit_of_their_own() -> None:
    """Of a progressive JPEG all coefficients are in memory: six bytes a pixel in full colour."""
    progressive = jpeg_of(9_000, 9_000, progressive=True, subsampling=0)
    assert "81,000,000 pixels" in refusal(progressive)
    assert "at most 55,000,000" in refusal(progressive)
    assert "at most 110,000,000" in refusal(jpeg_of(11_000, 11_000, progressive=True))


def jpeg_of(width: int, height: int, **how: object) -> bytes:
    """A JPEG of one colour with another size in its frame, so that it is made at once."""
    return saved(Image.new("RGB", (width, height)), "JPEG", quality=10, **how)


@pytest.mark.parametrize(
    ("kind", "size"), [("GIF", (20_000, 5_000)), ("BMP", (20_000, 5_000)), ("TIFF", (9_000, 9_000))]
)
def test_sizes_are_read_before_pixels_are(kind: str, size: tuple[int, int]) -> None:
    data = bytearray(saved(Image.new("L", (1, 1)), kind))
    if kind == "TIFF":
        for tag, side in zip((256, 257), size, strict=True):
            at = data.index(struct.pack("<HH", tag, 4))
            data[at + 8 : at + 12] = struct.pack("<I", side)
    else:
        at, code = (6, "<2H") if kind == "GIF" else (18, "<2I")
        struct.pack_into(code, data, at, *size)
    assert f"{size[0] * size[1]:,} pixels" in refusal(data)


def test_scans_of_a_jpeg_are_counted() -> None:
    assert open_image(scans(64, 64, 64)).size == (64, 64)
    assert "65 scans; at its size at most 64" in refusal(scans(64, 64, 65))
    assert "60 scans; at its size at most 25" in refusal(scans(8000, 6000, 60))


@pytest.fixture(scope="module")
def large() -> tuple[Image.Image, NDArray[np.float64]]:
    """A picture of 32 megapixels, and its colours at 32 x 24."""
    small = Image.radial_gradient("L").convert("RGB")
    return small.resize((6530, 4900)), np.asarray(small.resize((32, 24)), np.float64)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("WEBP", "RGBA", dict(lossless=True, quality=0, method=0)),
        ("AVIF", "RGB", dict(quality=50, speed=10, max_threads=1)),
    ],
)
def test_pictures_of_32_megapixels_open(
    kind: str,
    mode: str,
    options: dict[str, object],
    large: tuple[Image.Image, NDArray[np.float64]],
) -> None:
    drawn, expected = large
    opened = open_image(saved(drawn.convert(mode), kind, **options))
    assert opened.size == (LONG_SIDE, 1537)
    assert np.abs(np.asarray(opened.resize((32, 24))) - expected).mean() < 3


def test_large_pictures_are_reduced() -> None:
    assert open_image(saved(Image.new("RGB", (4100, 1000)), "JPEG")).size == (LONG_SIDE, 500)
    assert open_image(saved(Image.new("RGB", (1000, 4100)), "PNG")).size == (500, LONG_SIDE)
    assert open_image(png(30_000, 1, 8, 0)).size == (LONG_SIDE, 1)
    assert open_image(png(4_960, 7_016, 8, 0)).size == (1448, 2048)  # A4 at 600 dpi


@pytest.mark.parametrize("kind", FORMATS)
def test_small_and_thin_pictures_stay_as_they_are(kind: str) -> None:
    for size in ((1, 1), (3, 2000), (2000, 3)):
        assert open_image(saved(Image.new("RGB", size), kind)).size == size


# Orientation

INVERSE = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def turned(image: Image.Image, orientation: int, kind: str = "PNG") -> bytes:
    """Stored as a camera held otherwise would, with the EXIF tag that puts it right."""
    method = INVERSE[orientation]
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif[ExifTags.Base.Make] = "a camera with a name that does not fit into the entry"
    return saved(image if method is None else image.transpose(method), kind, exif=exif)


# In PNG, WebP and TIFF the number is read as in JPEG; in AVIF it is no number of the EXIF block.
@pytest.mark.parametrize(
    ("kind", "orientation"),
    [*product(("JPEG", "AVIF"), INVERSE), *product(("PNG", "WEBP", "TIFF"), (5, 8))],
)
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    upright = photo(48, 32)
    opened = open_image(turned(upright, orientation, kind))
    assert opened.size == upright.size
    assert np.abs(np.asarray(opened).astype(int) - np.asarray(upright)).mean() < 8


XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax'
    '-ns#"><rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" {}</rdf:RDF></x:xmpmeta>'
)
ATTRIBUTE = XMP.format('tiff:Orientation="{}"/>')
ELEMENT = XMP.format("><tiff:Orientation>{}</tiff:Orientation></rdf:Description>")


def with_xmp(image: Image.Image, kind: str, xmp: str, **options: object) -> bytes:
    if kind.startswith("PNG"):
        about = PngImagePlugin.PngInfo()
        about.add_itxt("XML:com.adobe.xmp", xmp, "en", "about", zip=kind == "PNG, packed")
        return saved(image, "PNG", pnginfo=about, **options)
    if kind == "TIFF":
        return saved(image, kind, tiffinfo={700: xmp.encode()}, **options)
    return saved(image, kind, xmp=xmp.encode(), **options)


# How the text is read does not depend on the kind of file that it comes from.
@pytest.mark.parametrize(
    ("kind", "text", "orientation"),
    [
        *product(("JPEG",), (ATTRIBUTE, ELEMENT), INVERSE),
        *product(("PNG", "PNG, packed", "WEBP", "TIFF", "AVIF"), (ATTRIBUTE,), (5, 8)),
    ],
)
def test_orientation_in_xmp_alone_is_applied(kind: str, text: str, orientation: int) -> None:
    upright, method = photo(48, 32), INVERSE[orientation]
    stored = upright if method is None else upright.transpose(method)
    data = with_xmp(stored, kind, text.format(orientation))
    opened = open_image(data)
    assert opened.size == upright.size
    assert np.abs(np.asarray(opened).astype(int) - np.asarray(upright)).mean() < 8
    by_pillow = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    assert np.abs(np.asarray(opened).astype(int) - np.asarray(by_pillow)).mean() < 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_exif_has_the_say_where_both_tell_an_orientation(kind: str) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 3
    options = {} if kind == "TIFF" else {"exif": exif}
    data = with_xmp(photo(48, 32), kind, ATTRIBUTE.format(6), **options)
    assert open_image(data).size == ((32, 48) if kind == "TIFF" else (48, 32))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "PNG, packed", "WEBP"])
def test_broken_xmp_and_exif_are_ignored(kind: str) -> None:
    for text in ("", "{", ATTRIBUTE.format(9), ATTRIBUTE.format("")):
        assert open_image(with_xmp(plain(), kind, text)).size == (40, 30)
    for body in (b"", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff"):
        data = saved(plain(), kind.partition(",")[0], exif=b"Exif\0\0" + body)
        assert open_image(data).size == (40, 30)


@pytest.mark.parametrize("body", [b"", b"\1", b"\1\0en", b"\1\0en\0\0no zlib", b"\0\0\0"])
def test_a_broken_chunk_of_text_is_ignored(body: bytes) -> None:
    data = saved(plain(), "PNG")
    extra = chunk(b"iTXt", b"XML:com.adobe.xmp\0" + body)
    assert open_image(data[:33] + extra + data[33:]).size == (40, 30)


def test_of_packed_xmp_only_so_much_is_unpacked() -> None:
    data = saved(plain(), "PNG")
    packed = zlib.compress(bytes(50_000_000), 1)
    extra = chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + packed)
    tracemalloc.start()
    assert open_image(data[:33] + extra + data[33:]).size == (40, 30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


# Depth, transparency, colour


def ramp(dtype: str, top: float) -> Image.Image:
    return Image.fromarray(np.linspace(0, top, 256).astype(dtype)[None].repeat(2, axis=0))


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        (ramp("uint16", 65535), "PNG"),
        (ramp("uint16", 65535), "TIFF"),
        (ramp(">u2", 65535), "TIFF"),
        (ramp("int32", 65535), "TIFF"),
        (ramp("int32", 255), "TIFF"),
        (ramp("int32", 2e9), "TIFF"),
        (ramp("float32", 1), "TIFF"),
        (ramp("float32", 1e6), "TIFF"),
    ],
)
def test_deep_grey_is_scaled_not_clipped(image: Image.Image, kind: str) -> None:
    grey = np.asarray(open_image(saved(image, kind)))[0, :, 0].astype(int)
    assert np.abs(grey - np.arange(256)).max() <= 1


def test_grey_of_12_bits_is_scaled_not_clipped() -> None:
    """Pillow writes none, so the file is made here: two numbers in three bytes."""
    values = np.linspace(0, 4095, 256).round().astype(int)
    packed = "".join(f"{value:03x}" for value in values)
    tags = {256: 256, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8 + 2 + 9 * 12 + 4, 277: 1}
    tags |= {278: 1, 279: len(packed) // 2}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    grey = np.asarray(open_image(data + bytes.fromhex(packed)))[0, :, 0].astype(int)
    assert np.abs(grey - np.arange(256)).max() <= 1


@pytest.mark.parametrize(
    ("dtype", "top", "kind"), [("uint8", 255, 1), ("<u2", 65535, 1), ("<f4", 1, 3)]
)
def test_white_is_zero_in_a_tiff_that_says_so(dtype: str, top: int, kind: int) -> None:
    """As in scans of X-ray films; Pillow writes none deeper than 8 bits."""
    values = np.linspace(0, top, 256).astype(dtype)
    tags = {256: 256, 257: 1, 258: 8 * values.itemsize, 259: 1, 262: 0, 273: 8 + 2 + 10 * 12 + 4}
    tags |= {277: 1, 278: 1, 279: values.nbytes, 339: kind}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + bytes(4)
    grey = np.asarray(open_image(data + values.tobytes()))[0, :, 0].astype(int)
    assert np.abs(grey - np.arange(255, -1, -1)).max() <= 1


def test_constant_and_infinite_floats_open() -> None:
    for value in (0.5, 7.0, math.inf, math.nan):
        assert open_image(saved(Image.new("F", (4, 4), value), "TIFF")).size == (4, 4)
    assert corner(saved(Image.new("F", (4, 4), 0.5), "TIFF")) == (128, 128, 128)


def test_16_bit_colour_opens() -> None:
    assert corner(png(5, 5, 16, 2)) == (7, 7, 7)
    assert corner(png(5, 5, 16, 6)) == (248, 248, 248)  # alpha 7 of 255


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "AVIF"])
def test_transparent_pixels_become_white(kind: str) -> None:
    assert min(corner(saved(plain("RGBA", (9, 9, 9, 0)), kind, lossless=True))) >= 254
    red = corner(saved(plain("RGBA", (255, 0, 0, 128)), kind, lossless=True))
    assert np.abs(np.subtract(red, (255, 127, 127))).max() <= 3


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA"])
def test_modes_with_few_colours(mode: str) -> None:
    assert corner(saved(plain("RGB", "black").convert(mode), "PNG")) == (0, 0, 0)
    assert corner(saved(plain("RGB", "white").convert(mode), "PNG")) == (255, 255, 255)


def test_transparent_palettes() -> None:
    image = plain("P", 1)
    image.putpalette([0, 0, 0, *COLOUR, 0, 0, 0])
    assert corner(saved(image, "PNG")) == COLOUR
    for kind in ("PNG", "GIF"):
        assert corner(saved(image, kind, transparency=1)) == (255, 255, 255)
    assert corner(saved(image, "PNG", transparency=bytes([255, 0, 9]))) == (255, 255, 255)


@pytest.mark.parametrize(
    ("depth", "colour_type", "value"),
    [(8, 0, 7), (16, 0, 0x0707), (8, 2, 7), (16, 2, 0x0707), (4, 0, 7)],
)
def test_the_transparent_colour_of_a_png(depth: int, colour_type: int, value: int) -> None:
    key = chunk(b"tRNS", struct.pack(">H", value) * (3 if colour_type == 2 else 1))
    row = b"\x77" if depth == 4 else b"\x07"
    assert corner(png(6, 6, depth, colour_type, key, row)) == (255, 255, 255)
    assert corner(png(6, 6, depth, colour_type, key, b"\x99")) == (0x99, 0x99, 0x99)


def test_cmyk_and_lab() -> None:
    for kind in ("JPEG", "TIFF"):  # Pillow writes JPEG inverted, as Adobe does
        assert np.abs(np.subtract(corner(saved(plain().convert("CMYK"), kind)), COLOUR)).max() <= 3
    assert np.abs(np.subtract(corner(saved(plain().convert("LAB"), "TIFF")), COLOUR)).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_an_embedded_profile_is_applied(kind: str) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    names = {b"rXYZ": b"bXYZ", b"bXYZ": b"rXYZ"}  # one in which red is called blue
    swapped = re.sub(rb"[rb]XYZ", lambda match: names[match[0]], profile)
    red, blue = plain("RGB", (255, 0, 0)), (0, 0, 255)
    got = corner(saved(red, kind, icc_profile=swapped, lossless=True))
    assert np.abs(np.subtract(got, blue)).max() <= 3
    # What is made of a profile does not depend on the kind of file that it comes from.
    for broken in (b"broken", profile[:200], bytes(500))[: 1 if kind in ("TIFF", "WEBP") else 3]:
        got = corner(saved(red, kind, icc_profile=broken, lossless=True))
        assert np.abs(np.subtract(got, (255, 0, 0))).max() <= 3


@pytest.mark.parametrize(
    ("mode", "kind", "options"),
    [("L", "PNG", {}), ("LA", "PNG", {}), ("LA", "TIFF", {}), ("L", "PNG", {"transparency": 255})],
)
def test_a_profile_of_grey_is_applied_with_transparency_too(
    mode: str, kind: str, options: dict[str, int]
) -> None:
    white = struct.pack(">3i", 63190, 65536, 54061)  # D50
    curve = struct.pack(">4s4xIH2x", b"curv", 1, round(1.8 * 256))
    tags = struct.pack(">I4sII4sII", 2, b"wtpt", 156, 20, b"kTRC", 176, len(curve))
    head = struct.pack(">I4xI12s12x4s28x", 192, 0x02400000, b"mntrGRAYXYZ ", b"acsp")
    head += white + bytes(48)
    profile = head + tags + struct.pack(">4s4x", b"XYZ ") + white + curve
    image = Image.new("L", (4, 4), 128).convert(mode)
    (level,) = set(corner(saved(image, kind, icc_profile=profile, **options)))
    linear = (128 / 255) ** 1.8
    assert abs(level - 255 * (1.055 * linear ** (1 / 2.4) - 0.055)) <= 1  # 146


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF", "AVIF", "MPO"])
def test_of_an_animation_the_first_frame_is_shown(kind: str) -> None:
    more = [plain("RGB", "blue"), plain("RGB", "lime")]
    got = corner(saved(plain(), kind, save_all=True, append_images=more))
    assert np.abs(np.subtract(got, COLOUR)).max() <= 3


# Damage


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("share", [0.3, 0.95])
def test_files_that_are_cut_off_are_refused(kind: str, share: float) -> None:
    data = saved(photo(64, 48), kind)
    refusal(data[: int(len(data) * share) if kind != "MPO" else 400])


def test_damage_is_told_in_words_of_our_own() -> None:
    data = bytearray(saved(photo(64, 48), "PNG"))
    data[60] ^= 255
    assert refusal(data) == "The PNG cannot be read: it is damaged, cut off or of an unusual sort."
    jpeg = saved(plain(), "JPEG")
    assert "arithmetic" in refusal(jpeg.replace(b"\xff\xc0", b"\xff\xc9"))


def test_nothing_global_changes() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    open_image(saved(plain(), "PNG"))
    refusal(png(20_000, 6_000, 8, 0))
    after = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters))
    assert before == after
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def check(data: bytes, opened: Callable[[bytes], Image.Image] = open_image) -> None:
    try:
        image = opened(data)
    except ImageError as error:
        sentence(error)
    else:
        assert image.mode == "RGB"
        assert max(image.size) <= LONG_SIDE


def mutated(data: bytes, seed: int) -> bytes:
    chance, result = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 6)):
        # headers are short and decide much, so most of the damage is done there
        at = chance.randrange(min(len(result), chance.choice((40, 400, len(result)))) or 1)
        damage = chance.randrange(4)
        if damage == 0 and result:
            result[at % len(result)] ^= 1 << chance.randrange(8)
        elif damage == 1:
            result[at:at] = chance.randbytes(chance.randint(1, 8))
        elif damage == 2:
            del result[at : at + chance.randint(1, 8)]
        else:
            result[at : at + 4] = chance.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"))
    return bytes(result)


SMALL = {
    "JPEG": saved(photo(24, 16), "JPEG", icc_profile=bytes(60)),
    "progressive JPEG": saved(photo(24, 16), "JPEG", progressive=True),
    "turned JPEG": turned(photo(24, 16), 6, "JPEG"),
    "PNG": saved(photo(24, 16), "PNG"),
    "palette PNG": saved(photo(24, 16).quantize(9), "PNG", transparency=3),
    **{kind: saved(photo(24, 16), kind) for kind in ("WEBP", "GIF", "BMP", "TIFF", "AVIF")},
}
seeds = st.integers(0, 2**32)


@settings(max_examples=200, derandomize=True, database=None)
@given(st.sampled_from([name for name in SMALL if "JPEG" in name or "PNG" in name]), seeds)
def test_damaged_jpeg_and_png(name: str, seed: int) -> None:
    check(mutated(SMALL[name], seed))


APART = st.sampled_from(["WEBP", "GIF", "BMP", "TIFF", "AVIF"])


@settings(max_examples=200, derandomize=True, database=None)
@given(APART, seeds)
def test_damaged_others(name: str, seed: int) -> None:
    """What the process does that decodes them: to start one takes a hundred times as long."""

    def opened(data: bytes) -> Image.Image:
        with warnings.catch_warnings(action="ignore"):  # of which nobody reads
            return decoding._decode(data, decoding._recognise(data))

    check(mutated(SMALL[name], seed), opened)


STARTS = (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xda\0\2", b"<", BOX)


@settings(max_examples=200, derandomize=True, database=None)
@given(st.sampled_from(STARTS), st.binary(max_size=300))
def test_random_bytes(start: bytes, data: bytes) -> None:
    check(start + data)


# Hostile files: each small or of legal size, and expensive


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def deflated(block: bytes, times: int) -> bytes:
    """As zlib packs a block so many times; it is packed once, and that repeated."""
    packer = zlib.compressobj(1)
    packed = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)  # refers to nothing before
    checksum = functools.reduce(lambda before, _: zlib.adler32(block, before), range(times), 1)
    return packed[:2] + times * packed[2:] + b"\3\0" + struct.pack(">I", checksum)


def png(
    width: int, height: int, depth: int, colour_type: int, extra: bytes = b"", value: bytes = b"\7"
) -> bytes:
    """Every sample is `value`."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour_type]
    row = b"\0" + value * math.ceil(width * samples * depth / 8)
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = chunk(b"IDAT", deflated(row, height)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + body


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def scans(width: int, height: int, count: int, components: int = 1) -> bytes:
    """A progressive JPEG of zeros, each of whose scans is a few bytes that mean "all blocks"."""
    ids = range(1, components + 1)
    blocks = math.ceil(width / 8) * math.ceil(height / 8)
    frame = struct.pack(">BHHB", 8, height, width, components)
    one_code = bytes([1] + 15 * [0])
    parts = [
        b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64),
        segment(0xC2, frame + b"".join(bytes([i, 0x11, 0]) for i in ids)),
        segment(0xC4, b"\0" + one_code + b"\0") + segment(0xC4, b"\x10" + one_code + b"\xe0"),
        segment(0xDA, bytes([components, *(x for i in ids for x in (i, 0)), 0, 0, 0])),
        bytes(blocks * components // 8 + 1),
    ]
    runs = "0" + 14 * "1"  # a run over 32,767 blocks
    bits = (runs * math.ceil(blocks / 32767)).ljust(8 * blocks, "1")[: 16 * (blocks // 32767 + 1)]
    data = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")
    for k in range(count - 1):
        parts += [segment(0xDA, bytes([1, k % components + 1, 0, 1, 63, 0x10])), data]
    return b"".join(parts) + b"\xff\xd9"


def tiff(width: int, height: int, depth: int, strip: bytes, *more: tuple[int, int, int]) -> bytes:
    """RGBA, deflated, in one strip unless `more` (tag, count, value) says tiles."""
    end = 8 + len(strip)
    entries = [(256, 1, width), (257, 1, height), (258, 4, end), (259, 1, 8), (262, 1, 2)]
    entries += [(277, 1, 4), (278, 1, height), (338, 1, 2), *more]
    if not more:
        entries += [(273, 1, 8), (279, 1, len(strip))]
    body = b"".join(struct.pack("<HHII", tag, 4, *rest) for tag, *rest in sorted(entries))
    directory = struct.pack("<H", len(entries)) + body + bytes(4)
    return (
        struct.pack("<4sI", b"II*\0", end + 16)
        + strip
        + struct.pack("<4I", *[depth] * 4)
        + directory
    )


def crowded_webp(side: int) -> bytes:
    """Lossless, with 65,536 sets of Huffman tables in 300 kB: 5 kB of tables for 20 bits each."""
    bits: list[str] = []

    def put(value: int, count: int) -> None:
        bits.append(f"{value:0{count}b}"[::-1])

    for value, count in ((0x2F, 8), (side - 1, 14), (side - 1, 14), (0, 4), (0, 2), (1, 1)):
        put(value, count)
    put(side.bit_length() - 11, 3)  # 256 x 256 tiles
    put(0, 1)
    for _ in range(2):  # 256 codes of 8 bits for green, and for red
        put(0, 1)
        put(12 - 4, 4)
        for length in 11 * [0] + [1]:
            put(length, 3)
        put(1, 1)
        put(3, 3)
        put(254, 8)
    one_symbol = "1000"
    bits.append(3 * one_symbol)
    bits += (f"{tile & 255:08b}{tile >> 8:08b}" for tile in range(65536))
    bits.append(65536 * 5 * one_symbol)
    stream = "".join(bits)
    body = int(stream[::-1], 2).to_bytes(math.ceil(len(stream) / 16) * 2, "little")
    body = b"WEBPVP8L" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(body)) + body


def lying_avif() -> bytes:
    """Its container says 80 x 60 pixels, its compressed data have 33.6 million."""
    data = saved(Image.new("RGB", (8000, 4200)), "AVIF", speed=10, max_threads=1)
    return data.replace(struct.pack(">II", 8000, 4200), struct.pack(">II", 80, 60))


def run_length_bmp() -> bytes:
    """32 million pixels of 4 bits, which Pillow unpacks one by one, in Python."""
    header = struct.pack("<IiiHHII4I", 40, 8000, 4000, 1, 4, 2, 0, 0, 0, 16, 0)
    row = b"\xfa\1" * 32 + bytes(2)
    return b"BM" + struct.pack("<III", 0, 0, 118) + header + bytes(range(64)) + row * 4000


JPEG, PNG = SMALL["JPEG"], SMALL["PNG"]
ICC_BOMB = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 20), 9))
EXIF_BOMB = b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"".join(
    struct.pack("<HHII", tag, 1, 60_000, 0) for tag in range(1000, 6000)
)
HOSTILE = {
    "PNG of 16 bits": lambda: png(8000, 4000, 16, 6),
    "PNG with a transparent colour": lambda: png(8000, 4000, 8, 2, chunk(b"tRNS", bytes(6))),
    "PNG with 15,000 profiles": lambda: PNG[:33] + ICC_BOMB * 15_000 + PNG[33:],
    "PNG with a million texts": lambda: PNG[:33] + chunk(b"tEXt", b"a\0") * 1_000_000 + PNG[33:],
    "JPEG of 24 scans": lambda: scans(8660, 5773, 24, 4),
    "JPEG with six million segments": lambda: JPEG[:2] + b"\xff\xe5\0\2" * 6_000_000 + JPEG[2:],
    "JPEG with 19,000 tables": lambda: (
        JPEG[:2] + segment(0xDB, b"\0" + bytes(64)) * 19_000 + JPEG[2:]
    ),
    "JPEG with overlapping EXIF": lambda: JPEG[:2] + segment(0xE1, EXIF_BOMB) + JPEG[2:],
    "TIFF of 16 bits": lambda: tiff(8000, 4000, 16, deflated(bytes(1_000_000), 256)),
    "TIFF with a giant tile": lambda: tiff(
        100, 100, 8, deflated(bytes(1_000_000), 900), (322, 1, 16384), (323, 1, 16384),
        (324, 1, 8), (325, 1, 10_000_000),
    ),
    "BMP of runs": run_length_bmp,
    "WebP with a table for each tile": lambda: crowded_webp(4096),
    "AVIF that lies about its size": lying_avif,
}  # fmt: skip

#: For each file that it is sent, behind its length, a fork measures and prints a line.
MEASURE = """
import os, re, resource, sys
from pathlib import Path
from vitviz.common.images import ImageError, open_image

def seconds(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime

while length := sys.stdin.buffer.readline():
    data = sys.stdin.buffer.read(int(length))
    if not os.fork():
        break
    assert os.wait()[1] == 0
else:
    sys.exit()
start = seconds(resource.RUSAGE_SELF)
try:
    text = open_image(data).mode
except ImageError as error:
    text = str(error)
taken = seconds(resource.RUSAGE_SELF) + seconds(resource.RUSAGE_CHILDREN) - start
# not ru_maxrss, which starts at what the process has that forked
here = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
there = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(taken, max(here, there), text)
"""


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_no_other_kind_is_decoded_without_the_limits(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which a process of its own has; "BMP of runs" below shows how it ends."""
    run = Mock(side_effect=OSError)
    monkeypatch.setattr(subprocess, "run", run)
    assert refusal(SMALL[kind]).startswith("No process could be started to read the ")
    assert run.call_args.kwargs["input"] == SMALL[kind]


@pytest.fixture(scope="module")
def measuring() -> Iterator["subprocess.Popen[bytes]"]:
    if sys.platform != "linux":
        pytest.skip("memory is limited and measured on Linux")
    command = [sys.executable, "-c", MEASURE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


@pytest.mark.parametrize("name", HOSTILE)
def test_no_file_takes_more_than_2_s_or_500_mb(
    name: str, measuring: "subprocess.Popen[bytes]"
) -> None:
    assert measuring.stdin
    assert measuring.stdout
    data = HOSTILE[name]()
    assert len(data) <= MAX_FILE_BYTES
    measuring.stdin.write(b"%d\n%b" % (len(data), data))
    measuring.stdin.flush()
    seconds, kibibytes, text = measuring.stdout.readline().decode().split(" ", 2)
    assert float(seconds) < 2
    assert int(kibibytes) * 1024 < 500_000_000
    assert text.strip() == "RGB" or sentence(ImageError(text.strip()))


# Geometry


def by_timm(
    image: Image.Image, input_size: tuple[int, int], crop_pct: float, mode: str, how: str
) -> NDArray[np.float64]:
    transform = create_transform(
        input_size=(3, *input_size),
        is_training=False,
        crop_pct=crop_pct,
        crop_mode=mode,
        interpolation=how,
        mean=(0, 0, 0),
        std=(1, 1, 1),
    )
    result: NDArray[np.float64] = transform(image).permute(1, 2, 0).numpy() * 255.0
    return result


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize(
    ("size", "input_size", "crop_pct"),
    [
        ((640, 480), (224, 224), 0.875),
        ((517, 333), (224, 224), 1.0),
        ((57, 91), (32, 32), 0.96),
        ((300, 200), (96, 160), 0.9),
        ((333, 201), (161, 95), 0.83),
        ((3, 200), (64, 64), 0.9),
        ((40, 50), (33, 47), 1.3),
    ],
)
def test_the_input_is_timms(
    size: tuple[int, int], input_size: tuple[int, int], crop_pct: float, mode: str
) -> None:
    image = photo(*size)
    placement = place(size, input_size=input_size, crop_pct=crop_pct, crop_mode=mode)
    for how in ("bicubic", "bilinear", "lanczos", "nearest"):
        ours = fit(image, placement, interpolation=how)
        assert (ours.height, ours.width) == input_size
        difference = np.abs(np.asarray(ours) - by_timm(image, input_size, crop_pct, mode, how))
        assert difference.max() <= 2, how
        assert difference.mean() < 0.5, how


@pytest.mark.parametrize("how", ["bicubic", "bilinear", "lanczos"])
def test_of_a_giant_only_the_part_is_made(how: str) -> None:
    image = photo(3, 2000)
    ours = fit(image, place(image.size, input_size=(96, 96)), interpolation=how)
    assert np.abs(np.asarray(ours) - by_timm(image, (96, 96), 1.0, "center", how)).max() <= 2


@pytest.mark.parametrize("how", ["bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(200, 1000), (1000, 200)])
def test_the_part_of_a_giant_is_rounded_as_the_whole(size: tuple[int, int], how: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3)).astype(np.uint8)
    image = Image.fromarray(noise)
    ours = fit(image, place(size, input_size=(930, 930)), interpolation=how)
    assert np.abs(np.asarray(ours) - by_timm(image, (930, 930), 1.0, "center", how)).max() <= 2


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(3, 2000), (2000, 3), (1, 1), (1, 30_000)])
def test_thin_pictures_need_no_giants(size: tuple[int, int], mode: str) -> None:
    placement = place(size, input_size=(224, 224), crop_pct=0.9, crop_mode=mode)
    assert fit(Image.new("RGB", size, COLOUR), placement).size == (224, 224)


def test_a_border_is_filled() -> None:
    placement = place((100, 50), input_size=(32, 32), crop_mode="border")
    assert placement.box == (0, -8, 32, 24)
    assert placement.crop == (0.0, -25.0, 100.0, 75.0)
    fitted = np.asarray(fit(plain().resize((100, 50)), placement, fill=(1, 2, 3)))
    assert (fitted[[0, 7, 24, 31]] == (1, 2, 3)).all()
    assert (fitted[8:24] == COLOUR).all()


def test_geometry_refuses_what_makes_no_sense() -> None:
    placement = place((100, 50), input_size=(32, 32))
    with pytest.raises(ValueError, match=r"\(100, 50\).*\(40, 30\)"):
        fit(plain(), placement)
    with pytest.raises(ValueError, match="interpolation 'cubist'"):
        fit(plain().resize((100, 50)), placement, interpolation="cubist")
    with pytest.raises(ValueError, match="crop_mode"):
        place((100, 50), input_size=(32, 32), crop_mode="middle")
    for crop_pct in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="positive"):
            place((100, 50), input_size=(32, 32), crop_pct=crop_pct)


@pytest.mark.parametrize("mode", ["center", "squash", "cut"])
@pytest.mark.parametrize("orientation", INVERSE)
@pytest.mark.parametrize("size", [(320, 240), (211, 333), (400, 130)])
def test_a_bright_patch_is_found_where_it_is(
    size: tuple[int, int], orientation: int, mode: str
) -> None:
    """Through the file, its EXIF, the crop and back: to one pixel."""
    placement = place(size, input_size=(112, 112), crop_pct=0.9, crop_mode=mode)
    row, col = 4, 1
    box = patch_box(placement.crop, (7, 7), row, col)
    left, top, right, bottom = (round(edge) for edge in box)
    upright = Image.new("RGB", size)
    upright.paste((255, 255, 255), (left, top, right, bottom))

    opened = open_image(turned(upright, orientation))
    assert opened.size == size
    light = np.asarray(fit(opened, placement).convert("L")).astype(float)
    patches = light.reshape(7, 16, 7, 16).mean(axis=(1, 3))
    assert np.unravel_index(patches.argmax(), patches.shape) == (row, col)

    crop = placement.crop
    y, x = ((light.sum(axis=axis) * (np.arange(112) + 0.5)).sum() / light.sum() for axis in (1, 0))
    found = (crop[0] + x * (crop[2] - crop[0]) / 112, crop[1] + y * (crop[3] - crop[1]) / 112)
    assert found == pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=1)


def test_a_file_may_be_given_by_its_path_or_bytes(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(saved(plain(), "PNG"))
    data = path.read_bytes()
    for kind in (path, str(path), bytearray(data), memoryview(data)):
        assert open_image(kind).size == (40, 30)
    assert refusal(tmp_path / "nowhere.png").endswith("cannot be read: No such file or directory.")
    assert refusal(tmp_path).endswith("cannot be read: Is a directory.")


def test_a_file_over_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    monkeypatch.setattr("vitviz.common.images.opening.open", None, raising=False)
    assert refusal(path) == "The file has 25,000,001 bytes; at most 25,000,000 are read."


# --- a choice of patches in the picture ---------------------------------------------------------


def test_a_mask_of_patches_lies_where_the_patches_do() -> None:
    mask = np.zeros((2, 3), bool)
    mask[0, 1] = mask[1, 2] = True
    drawn = np.asarray(patch_mask(mask, size=(40, 30), crop=(5, 4, 35, 24)))
    wanted = np.zeros((30, 40), np.uint8)
    wanted[4:14, 15:25] = wanted[14:24, 25:35] = 255
    np.testing.assert_array_equal(drawn, wanted)


def test_a_mask_may_reach_beyond_the_picture_and_need_not_meet_its_pixels() -> None:
    mask = np.array([[True, False], [False, True]])
    drawn = np.asarray(patch_mask(mask, size=(9, 7), crop=(-1.5, -2, 10.5, 9)))
    for y, x in np.ndindex(7, 9):
        row, col = int((y + 0.5 + 2) / 5.5), int((x + 0.5 + 1.5) / 6)
        assert drawn[y, x] == (255 if mask[row, col] else 0)
