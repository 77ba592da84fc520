"""What threads have their own words for; see batonq.client.aio.pauses."""

from __future__ import annotations

from time import sleep

__all__ = ["sleep"]
