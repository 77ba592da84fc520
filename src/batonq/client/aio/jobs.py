"""A job and its progress."""

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
    """A redrive or a replay. It moves dead letters, or sends retained messages again, at a limited rate, and can be
    paused, resumed and cancelled.
    """

    _calls: Any = None

    async def refresh(self) -> Job:
        """Get the job's current progress; updates and returns this object."""
        return await self._ask("GET", "")

    async def cancel(self) -> Job:
        """Cancel the job. Messages that it has moved stay moved."""
        return await self._ask("POST", ":cancel")

    async def pause(self) -> Job:
        """Pause the job until `resume`."""
        return await self._ask("POST", ":pause")

    async def resume(self) -> Job:
        """Resume the job after a pause, including one that the job started itself."""
        return await self._ask("POST", ":resume")

    async def wait(self, timeout: float = 60.0, every: float = 0.2) -> Job:
        """Wait until the job has ended or paused itself. Raises Unavailable after `timeout` seconds."""
        ends = time.monotonic() + timeout
        while True:
            await self.refresh()
            if self.done or self.state == "PAUSED":
                return self
            if time.monotonic() >= ends:
                raise Unavailable(
                    f"Job {self.id} is still {self.state} after {timeout:g} s, with {self.moved} messages moved."
                )
            await sleep(every)

    async def _ask(self, method: str, verb: str) -> Job:
        calls: Calls = self._calls
        reply = await calls.request(method, f"/v1/jobs/{self.job_id}{verb}")
        now = codec.decode(Job, reply.answer)
        for name in JobFields.__struct_fields__:
            setattr(self, name, getattr(now, name))
        return self


class Jobs(Struct):
    jobs: list[Job]
