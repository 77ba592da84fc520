"""A program that has queues in its own process; the tests kill it. `embedder.py PATH FORM FIRST`.

It prints the number of each message that was acknowledged, one a line, until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from itertools import count

import batonq

SENDERS = 4


def main(path: str, form: str, first: int) -> None:
    numbers = count(first)
    if form == "async":
        asyncio.run(send_async(path, numbers))
        return
    baton = batonq.open(path)
    queue = baton.create_queue("embedded", visibility=600)
    threads = [threading.Thread(target=send, args=(queue, numbers)) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send(queue: batonq.sync.Queue, numbers: count[int]) -> None:
    for number in numbers:
        queue.send(number)
        tell(number)


async def send_async(path: str, numbers: count[int]) -> None:
    async with await batonq.open_async(path) as baton:
        queue = await baton.create_queue("embedded", visibility=600)

        async def sender() -> None:
            for number in numbers:
                await queue.send(number)
                tell(number)

        await asyncio.gather(*(sender() for _ in range(SENDERS)))


def tell(number: int) -> None:
    """One write, so that lines of several threads stay whole."""
    os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
