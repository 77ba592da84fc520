"""The asyncio functions that have another name for threads."""

from __future__ import annotations

from asyncio import sleep, to_thread

__all__ = ["sleep", "to_thread"]
