"""Creates the variants of an image with Pillow. No other module uses Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterator

from PIL import Image

from batonq.worker import Poison
from examples.transcode.plan import VARIANTS, Variant

PIXELS_MAX = 50_000_000
FORMATS = ("JPEG", "PNG", "WEBP")


class CorruptImage(Poison):
    """No retry can read this image, so its message is dead-lettered at once, until an operator repairs the image."""


def variants(raw: bytes) -> Iterator[tuple[Variant, bytes]]:
    """Yield each variant as soon as it is created."""
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
