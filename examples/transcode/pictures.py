"""Image processing: from the bytes of an image to the bytes of its variants. Only this module uses Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator

from PIL import Image

from batonq.worker import Poison
from examples.transcode.plan import VARIANTS, Variant

PIXELS_MAX = 50_000_000
FORMATS = ("JPEG", "PNG", "WEBP")


class CorruptImage(Poison):
    """A retry cannot make this image readable: it is dead-lettered at once, until an operator repairs it."""


def variants(raw: bytes) -> Iterator[tuple[Variant, bytes]]:
    """Yields each variant as soon as it is created."""
    image = _decoded(raw)
    for variant in VARIANTS:
        smaller = image.copy()
        smaller.thumbnail((variant.side, variant.side))
        encoded = io.BytesIO()
        smaller.save(encoded, variant.format, quality=80)
        yield variant, encoded.getvalue()


def _decoded(raw: bytes) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(raw), formats=FORMATS)
    except OSError:
        raise CorruptImage(f"not an image: it is none of {', '.join(FORMATS)}") from None
    if image.width * image.height > PIXELS_MAX:
        raise CorruptImage(f"too large: {image.width} × {image.height} pixels")
    try:
        return image.convert("RGB")
    except (OSError, SyntaxError) as problem:
        raise CorruptImage(f"truncated or damaged: {problem}") from None
