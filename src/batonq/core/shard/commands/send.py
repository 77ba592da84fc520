"""The Send command. New requests that arrive together and carry only bodies are written as one run of records.

Any other request is first compared with what the shard remembers (remembered_requests.py, numbered_sends.py), then each
of its messages is decided on (new_messages.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.commands import Send, Sent
from batonq.core.shard.clock import Clock
from batonq.core.shard.commands.new_messages import SHARD_FULL, NewMessages, refused
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import OverLimit


class SendCommands:
    def __init__(
        self,
        messages: Messages,
        clock: Clock,
        new_messages: NewMessages,
        numbered: NumberedSends,
        requests: RememberedRequests,
    ) -> None:
        self.number = messages.journal.number
        self.messages = messages
        self.clock = clock
        self.new_messages = new_messages
        self.numbered = numbered
        self.requests = requests

    def send(self, commands: Sequence[Send], now: int) -> list[Sent]:
        """Send the messages of several requests to one queue; returns one outcome per request. Raises
        QueueDoesNotExist.
        """
        now = self.clock.begin(now)
        queue = self.messages.queue_state(commands[0].queue)
        takes_runs = self.new_messages.takes_runs(queue)
        outcomes: list[Sent] = []
        run: list[Send] = []
        names: set[int] = set()
        for command in commands:
            request = command.request
            bare = takes_runs and command.bodies and command.is_bare and request not in names
            if bare and (not request or self.requests.is_new(queue, request, now)):
                run.append(command)
                if request:
                    names.add(request)
                continue
            if run:
                outcomes += self._send_run(queue, run, now)
                run = []
                names.clear()
            outcomes.append(self._send_one(queue, command, now))
        if run:
            outcomes += self._send_run(queue, run, now)
        return outcomes

    def _send_run(self, queue: QueueState, commands: Sequence[Send], now: int) -> list[Sent]:
        """Write the bare messages of several new requests as one run. If the shard has no room for all, try each
        request on its own.
        """
        first = self.new_messages.write_bare(queue, commands, now)
        if not first:
            if len(commands) > 1:
                return [sent for command in commands for sent in self._send_run(queue, [command], now)]
            return [refused(self.number, commands[0], OverLimit(SHARD_FULL))]
        outcomes: list[Sent] = []
        for command in commands:
            count = len(command.bodies)
            if command.request:
                self.requests.remember(queue.number, command.request, first, count, now)
            outcomes.append(Sent(self.number, first, count))
            first += count
        return outcomes

    def _send_one(self, queue: QueueState, command: Send, now: int) -> Sent:
        if command.once is not None:
            return self.requests.send_once(queue, command, command.once, now)
        if command.request:
            return self.requests.send_named(queue, command, now)
        return self.numbered.take(queue, command, now)
