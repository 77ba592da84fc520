"""Another client of the server under attack: it sends, receives and acknowledges throughout, and keeps account.

It comes from an address of its own: what the attacker's address has used up is not missing here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count

from tests.fuzz.asker import Asker, Refused
from tests.fuzz.server import FuzzedServer

ADDRESS = "127.0.0.2"
ACCOUNT = "222222222222"
PAUSE_S = 0.005
BATCH = 3
_numbers = count(1)


class Canary:
    """`problems` says what no client may see: a refusal, a lost connection, a message lost or delivered twice."""

    def __init__(self, server: FuzzedServer) -> None:
        self.asker = Asker(server, ADDRESS, ACCOUNT)
        self.queue = f"canary-{next(_numbers)}"  # what one that was ended early has left is not for the next
        self._number = 0
        self._sent: set[str] = set()
        self._received: Counter[str] = Counter()
        self._stopping = False
        self.problems: list[str] = []

    async def start(self) -> None:
        await self.asker.good("POST", "/v1/queues", {"name": self.queue, "defaultVisibilityTimeoutSeconds": 600})

    async def run(self) -> None:
        """Until `stop`, or the first problem."""
        try:
            while not self._stopping:
                await self._send()
                await self._receive()
                await asyncio.sleep(PAUSE_S)
            while len(self._received) < len(self._sent) and await self._receive():
                pass
        except Refused as problem:
            self.problems.append(f"the canary was refused: {problem}")
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as problem:
            self.problems.append(f"the canary was not answered: {type(problem).__name__} {problem}")
        else:
            self._account()
        finally:
            await self.asker.close()

    def stop(self) -> None:
        self._stopping = True

    async def _send(self) -> None:
        texts = [str(self._number + number) for number in range(BATCH)]
        self._number += BATCH
        messages = [{"body": text} for text in texts]
        await self.asker.good("POST", f"/v1/queues/{self.queue}/messages:batch", {"messages": messages})
        self._sent.update(texts)

    async def _receive(self) -> bool:
        answer = await self.asker.good("POST", f"/v1/queues/{self.queue}/messages:receive", {"maxMessages": 10})
        messages = answer["messages"]
        self._received.update(str(message["body"]) for message in messages)
        if messages:
            receipts = [message["receiptHandle"] for message in messages]
            await self.asker.good("POST", f"/v1/queues/{self.queue}/messages:ack", {"receiptHandles": receipts})
        return bool(messages)

    def _account(self) -> None:
        if lost := sorted(self._sent - self._received.keys()):
            self.problems.append(f"{len(lost)} messages of the canary were lost: {lost[:10]}")
        if unknown := sorted(self._received.keys() - self._sent):
            self.problems.append(f"messages were delivered that were not acknowledged: {unknown[:10]}")
        if twice := [text for text, times in self._received.items() if times > 1]:
            self.problems.append(f"messages of the canary were delivered more than once: {twice[:10]}")
