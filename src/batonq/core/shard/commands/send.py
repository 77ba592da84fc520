"""The Send command. New requests that arrive together, and whose messages are all accepted, are written as one run.

Any other request is first compared with what the shard remembers (remembered_requests.py, numbered_sends.py), then each
of its messages is decided on (new_messages.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.commands import Send, Sent
from batonq.core.shard.commands.new_messages import NewMessages, Run
from batonq.core.shard.commands.numbered_sends import NumberedSends
from batonq.core.shard.commands.remembered_requests import RememberedRequests
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState


class SendCommands:
    def __init__(
        self,
        messages: Messages,
        expiry: Expiry,
        new_messages: NewMessages,
        numbered: NumberedSends,
        requests: RememberedRequests,
    ) -> None:
        self.number = messages.journal.number
        self.messages = messages
        self.expiry = expiry
        self.new_messages = new_messages
        self.numbered = numbered
        self.requests = requests

    def send(self, commands: Sequence[Send], now: int) -> list[Sent]:
        """Send the messages of several requests to one queue; returns one outcome per request. Raises
        QueueDoesNotExist.
        """
        now = self.expiry.begin(now)
        queue = self.messages.queue_state(commands[0].queue)
        self.new_messages.begin()
        takes_runs = self.new_messages.takes_runs(queue)
        outcomes: list[Sent] = []
        run = Run()
        for command in commands:
            if takes_runs and self._joins(queue, run, command, now):
                continue
            if run.commands:
                outcomes += self._send_run(queue, run, now)
                run = Run()
                if takes_runs and self._joins(queue, run, command, now):
                    continue
            outcomes.append(self._send_one(queue, command, now))
        if run.commands:
            outcomes += self._send_run(queue, run, now)
        return outcomes

    def _joins(self, queue: QueueState, run: Run, command: Send, now: int) -> bool:
        """Add a request to a run if it is new and all its messages will be accepted."""
        if not command.bodies or command.once is not None or command.producer:
            return False
        request = command.request
        if request and (request in run.names or not self.requests.is_new(queue, request, now)):
            return False
        return self.new_messages.joins(queue, run, command)

    def _send_run(self, queue: QueueState, run: Run, now: int) -> list[Sent]:
        """Write the messages of several new requests together. If the shard has no room for all of them, each request
        goes on its own.
        """
        first = self.new_messages.write_run(queue, run, now)
        if not first:
            return [self._send_one(queue, command, now) for command in run.commands]
        outcomes: list[Sent] = []
        for command in run.commands:
            count = len(command.bodies)
            if command.request:
                self.requests.remember(queue.number, command.request, first, count, now)
            outcomes.append(Sent(self.number, first, count))
            first += count
        return outcomes

    def _send_one(self, queue: QueueState, command: Send, now: int) -> Sent:
        if queue.policy.topic:
            self.new_messages.publishing.begin()
        if command.once is not None:
            return self.requests.send_once(queue, command, command.once, now)
        if command.request:
            return self.requests.send_named(queue, command, now)
        return self.numbered.take(queue, command, now)
