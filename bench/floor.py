"""The floor: the least work that a durable server can do for the three calls of a message's life.

It parses the request, hashes each body, appends to a file, and answers when an fdatasync covers what it appended. It
keeps no queue: no leases, no receipts to check, no order, no timers, no recovery. Requests that arrive during a sync
share the next one. The file is written in full in advance and used as a ring, so that a sync writes data and no
metadata. What a real server needs beyond this is the price of being a queue.

    python -m bench.floor --port 9400 --data DIR [--sync inline|thread] [--loop uvloop|asyncio]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import os
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httptools
import msgspec
import uvloop

RING_BYTES = 512 << 20
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n"
_RECORD = struct.Struct("<QQ48x")  # the size of a row in Baton's log


class SendEntry(msgspec.Struct, gc=False):
    Id: str
    MessageBody: str


class SendMessageBatch(msgspec.Struct, gc=False):
    QueueUrl: str
    Entries: list[SendEntry]


class SendMessage(msgspec.Struct, gc=False):
    QueueUrl: str
    MessageBody: str


class ReceiveMessage(msgspec.Struct, gc=False):
    QueueUrl: str
    MaxNumberOfMessages: int = 1


class DeleteEntry(msgspec.Struct, gc=False):
    Id: str
    ReceiptHandle: str


class DeleteMessageBatch(msgspec.Struct, gc=False):
    QueueUrl: str
    Entries: list[DeleteEntry]


class DeleteMessage(msgspec.Struct, gc=False):
    QueueUrl: str
    ReceiptHandle: str


class Message(msgspec.Struct, gc=False):
    MessageId: str
    ReceiptHandle: str
    MD5OfBody: str
    Body: str


class Sent(msgspec.Struct, gc=False):
    Id: str
    MessageId: str
    MD5OfMessageBody: str


class Floor:
    """The responses, and the group commit. `release` sends what a finished sync covers."""

    def __init__(self, directory: Path, sync_on_thread: bool) -> None:
        self.file = _ring(directory / "floor.log")
        self.offset = 0
        self.number = 0
        self.kept: deque[Message] = deque()
        self.records: list[bytes] = []
        self.answers: list[tuple[asyncio.Transport, bytes]] = []
        self.committing = False
        self.sync_on_thread = sync_on_thread
        self.loop = asyncio.get_running_loop()
        self.calls: dict[bytes, Callable[[bytes], bytes]] = {
            b"AmazonSQS.SendMessageBatch": self.send_batch,
            b"AmazonSQS.SendMessage": self.send,
            b"AmazonSQS.ReceiveMessage": self.receive,
            b"AmazonSQS.DeleteMessageBatch": self.delete_batch,
            b"AmazonSQS.DeleteMessage": self.delete,
            b"AmazonSQS.CreateQueue": self.create_queue,
        }
        self.decode_send_batch = msgspec.json.Decoder(SendMessageBatch).decode
        self.decode_send = msgspec.json.Decoder(SendMessage).decode
        self.decode_receive = msgspec.json.Decoder(ReceiveMessage).decode
        self.decode_delete_batch = msgspec.json.Decoder(DeleteMessageBatch).decode
        self.decode_delete = msgspec.json.Decoder(DeleteMessage).decode
        self.encode = msgspec.json.Encoder().encode

    def handle(self, target: bytes, body: bytes, transport: asyncio.Transport) -> None:
        answer = self.calls[target](body)
        self.answers.append((transport, _HEAD % len(answer) + answer))
        if not self.committing:
            self.committing = True
            self.loop.call_soon(self.commit)

    def create_queue(self, body: bytes) -> bytes:
        return b'{"QueueUrl":"http://127.0.0.1/000000000000/floor"}'

    def take(self, text: str) -> tuple[str, str]:
        body = text.encode()
        digest = hashlib.md5(body).hexdigest()
        self.number = number = self.number + 1
        message_id = f"00000000-0000-4000-8000-{number:012x}"
        self.records += (_RECORD.pack(number, len(body)), body)
        self.kept.append(Message(message_id, f"{number:048x}", digest, text))
        return message_id, digest

    def send_batch(self, body: bytes) -> bytes:
        entries = self.decode_send_batch(body).Entries
        return self.encode({"Successful": [Sent(entry.Id, *self.take(entry.MessageBody)) for entry in entries]})

    def send(self, body: bytes) -> bytes:
        message_id, digest = self.take(self.decode_send(body).MessageBody)
        return self.encode({"MessageId": message_id, "MD5OfMessageBody": digest})

    def receive(self, body: bytes) -> bytes:
        count = min(self.decode_receive(body).MaxNumberOfMessages, len(self.kept))
        messages = [self.kept.popleft() for _ in range(count)]
        for message in messages:
            self.records.append(_RECORD.pack(int(message.ReceiptHandle, 16), 1))
        return self.encode({"Messages": messages}) if messages else b"{}"

    def delete_batch(self, body: bytes) -> bytes:
        entries = self.decode_delete_batch(body).Entries
        for entry in entries:
            self.records.append(_RECORD.pack(int(entry.ReceiptHandle, 16), 2))
        return self.encode({"Successful": [{"Id": entry.Id} for entry in entries]})

    def delete(self, body: bytes) -> bytes:
        self.records.append(_RECORD.pack(int(self.decode_delete(body).ReceiptHandle, 16), 2))
        return b"{}"

    def commit(self) -> None:
        data = b"".join(self.records)
        answers = self.answers
        self.records = []
        self.answers = []
        if self.sync_on_thread and data:
            self.loop.run_in_executor(None, self.write, data).add_done_callback(lambda _: self.release(answers))
        else:
            self.write(data)
            self.release(answers)

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self.offset + len(data) > RING_BYTES:
            self.offset = 0
        os.pwrite(self.file, data, self.offset)
        self.offset += len(data)
        os.fdatasync(self.file)

    def release(self, answers: list[tuple[asyncio.Transport, bytes]]) -> None:
        for transport, answer in answers:
            transport.write(answer)
        self.committing = bool(self.answers)
        if self.committing:
            self.loop.call_soon(self.commit)


class FloorProtocol(asyncio.Protocol):
    """One connection: httptools' callbacks, the target header and the body, nothing else."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.parser: Any = httptools.HttpRequestParser(self)
        self.target = b""
        self.chunks: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not its subclasses

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-amz-target":
            self.target = value

    def on_body(self, body: bytes) -> None:
        self.chunks.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self.chunks)
        self.chunks = []
        self.floor.handle(self.target, body, self.transport)


def _ring(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    zeros = bytes(1 << 20)
    for _ in range(RING_BYTES >> 20):
        os.write(descriptor, zeros)
    os.fsync(descriptor)
    return descriptor


async def serve(port: int, directory: Path, sync_on_thread: bool) -> None:
    floor = Floor(directory, sync_on_thread)
    gc.freeze()  # nothing here creates reference cycles
    gc.disable()
    server = await asyncio.get_running_loop().create_server(lambda: FloorProtocol(floor), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="The floor: the smallest honest server for a message's three calls.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sync", choices=("inline", "thread"), default="inline")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    factory = uvloop.new_event_loop if options.loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(options.port, options.data, options.sync == "thread"))


if __name__ == "__main__":
    main()
