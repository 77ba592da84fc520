"""The thread functions that have another name in asyncio; see batonq.client.aio.pauses."""

from __future__ import annotations

from time import sleep

__all__ = ["sleep"]
