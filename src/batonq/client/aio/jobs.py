"""A job of the server: a redrive, with its progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from batonq.client import codec
from batonq.client.aio.pauses import sleep
from batonq.client.models import JobFields
from batonq.errors import Unavailable

if TYPE_CHECKING:
    from batonq.client.aio.calls import Calls


class Job(JobFields):
    """A redrive: it moves dead letters at a rate, and can be paused, resumed and cancelled."""

    _calls: Any = None

    async def refresh(self) -> Job:
        """Ask how far it is; the same object, brought up to date."""
        return await self._ask("GET", "")

    async def cancel(self) -> Job:
        """Move nothing more; what was moved stays where it is."""
        return await self._ask("POST", ":cancel")

    async def pause(self) -> Job:
        """Move nothing until `resume`."""
        return await self._ask("POST", ":pause")

    async def resume(self) -> Job:
        """Go on after a pause, also one that the job made by itself."""
        return await self._ask("POST", ":resume")

    async def wait(self, timeout: float = 60.0, every: float = 0.2) -> Job:
        """Wait until it has ended or paused itself. Raises Unavailable when it takes longer than `timeout` seconds."""
        ends = time.monotonic() + timeout
        while True:
            await self.refresh()
            if self.done or self.state == "PAUSED":
                return self
            if time.monotonic() >= ends:
                raise Unavailable(f"The job is still {self.state} after {timeout:g} s: {self.moved} moved.")
            await sleep(every)

    async def _ask(self, method: str, verb: str) -> Job:
        calls: Calls = self._calls
        told = await calls.request(method, f"/v1/jobs/{self.job_id}{verb}")
        now = codec.decode(Job, told.answer)
        for name in JobFields.__struct_fields__:
            setattr(self, name, getattr(now, name))
        return self


class Jobs(Struct):
    jobs: list[Job]
