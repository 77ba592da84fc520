"""Whether the server can be reached: a wrong address is reported at once, and an outage is logged when it begins and
when it ends.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from batonq.client.transport import Unreachable
from batonq.errors import BatonError

if TYPE_CHECKING:
    import logging


class Outage:
    """The state of one client, shared by its threads."""

    __slots__ = ("_began", "_host", "_reached")

    def __init__(self, host: str, first_connection: bool) -> None:
        self._host = host
        self._reached = first_connection
        self._began = 0.0  # time.monotonic(), 0 while the server answers

    def is_wrong_address(self, problem: BatonError) -> bool:
        """Whether no server was ever reached there: then waiting does not help. A server that has answered before is
        restarting.
        """
        return not self._reached and isinstance(problem, Unreachable)

    def retrying(self, problem: BatonError) -> None:
        """A request got no answer and is about to be retried."""
        if not self._began:
            self._began = time.monotonic()
            _logger().warning("%s Retrying.", problem)

    def answered(self) -> None:
        self._reached = True
        if self._began:
            seconds, self._began = time.monotonic() - self._began, 0.0
            _logger().warning("The server at %s answers again after %.1f s.", self._host, seconds)


def _logger() -> logging.Logger:
    import logging  # imported late: most programs never need it here

    return logging.getLogger("batonq.client")
