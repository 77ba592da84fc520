# Made by tools/make_sync.py from batonq/client/aio/jobs.py; change that one.
"""A redrive job and its progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from batonq.client import codec
from batonq.client.blocking.pauses import sleep
from batonq.client.models import JobFields
from batonq.errors import Unavailable

if TYPE_CHECKING:
    from batonq.client.blocking.calls import Calls


class Job(JobFields):
    """A redrive job. It moves dead letters at a limited rate and can be paused, resumed and cancelled."""

    _calls: Any = None

    def refresh(self) -> Job:
        """Get the job's current progress; updates and returns this object."""
        return self._ask("GET", "")

    def cancel(self) -> Job:
        """Cancel the job. Messages that it has moved stay moved."""
        return self._ask("POST", ":cancel")

    def pause(self) -> Job:
        """Pause the job until `resume`."""
        return self._ask("POST", ":pause")

    def resume(self) -> Job:
        """Resume the job after a pause, including one that the job started itself."""
        return self._ask("POST", ":resume")

    def wait(self, timeout: float = 60.0, every: float = 0.2) -> Job:
        """Wait until the job has ended or paused itself. Raises Unavailable after `timeout` seconds."""
        ends = time.monotonic() + timeout
        while True:
            self.refresh()
            if self.done or self.state == "PAUSED":
                return self
            if time.monotonic() >= ends:
                raise Unavailable(
                    f"Job {self.id} is still {self.state} after {timeout:g} s, with {self.moved} messages moved."
                )
            sleep(every)

    def _ask(self, method: str, verb: str) -> Job:
        calls: Calls = self._calls
        reply = calls.request(method, f"/v1/jobs/{self.job_id}{verb}")
        now = codec.decode(Job, reply.answer)
        for name in JobFields.__struct_fields__:
            setattr(self, name, getattr(now, name))
        return self


class Jobs(Struct):
    jobs: list[Job]
