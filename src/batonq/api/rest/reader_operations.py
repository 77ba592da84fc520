"""The operations of reader groups and retained history, as rows of the table in operations.py."""

from __future__ import annotations

from batonq.api.rest import reader_shapes as shapes
from batonq.api.rest import readers
from batonq.api.rest.operation import Operation

READERS = "/v1/queues/{queue}/readers"
READER = "/v1/queues/{queue}/readers/{group}"

READER_OPERATIONS = (
    Operation(
        name="listReaders",
        method="GET",
        path=READERS,
        summary="List the reader groups of a queue, with how far each is behind.",
        run=readers.list_readers,
        answers={200: shapes.Readers},
        errors=(404,),
    ),
    Operation(
        name="createReader",
        method="POST",
        path=READERS,
        summary="Create a reader group on a queue that retains its history. Repeating the request returns the group.",
        run=readers.create_reader,
        takes=shapes.ReaderSpec,
        answers={201: shapes.Reader, 200: shapes.Reader},
        errors=(404, 409),
    ),
    Operation(
        name="getReader",
        method="GET",
        path=READER,
        summary="Get a reader group: its members, and its position and lag on each shard.",
        run=readers.get_reader,
        answers={200: shapes.Reader},
        errors=(404,),
    ),
    Operation(
        name="deleteReader",
        method="DELETE",
        path=READER,
        summary="Delete a reader group with its positions. The history stays.",
        run=readers.delete_reader,
        answers={204: None},
        errors=(404,),
    ),
    Operation(
        name="joinReader",
        method="POST",
        path=READER + ":join",
        summary="Join a reader group, or stay a member: repeat it within sessionSeconds.",
        run=readers.join,
        takes=shapes.JoinSpec,
        answers={200: shapes.Joined},
        errors=(404, 409),
    ),
    Operation(
        name="leaveReader",
        method="POST",
        path=READER + ":leave",
        summary="Leave a reader group, so that other members get the shards at once.",
        run=readers.leave,
        takes=shapes.JoinSpec,
        answers={204: None},
        errors=(404,),
    ),
    Operation(
        name="fetchReader",
        method="POST",
        path=READER + ":fetch",
        summary="Fetch messages that the group has not committed, with a long poll if there are none.",
        run=readers.fetch,
        takes=shapes.FetchSpec,
        answers={200: shapes.FetchedMessages},
        errors=(404, 409),
    ),
    Operation(
        name="commitReader",
        method="POST",
        path=READER + ":commit",
        summary="Commit positions: everything up to them is done. The response is sent when that is durable.",
        run=readers.commit,
        takes=shapes.CommitSpec,
        answers={200: shapes.Committed},
        errors=(404, 409),
    ),
    Operation(
        name="failReader",
        method="POST",
        path=READER + ":fail",
        summary="Report that a message failed. After maxFailures it is moved to the group's dead-letter queue.",
        run=readers.fail,
        takes=shapes.FailSpec,
        answers={200: shapes.FailResult},
        errors=(404, 409),
    ),
    Operation(
        name="seekReader",
        method="POST",
        path=READER + ":seek",
        summary="Let a reader group continue at the start, the end, a time, or positions.",
        run=readers.seek,
        takes=shapes.SeekSpec,
        answers={200: shapes.Reader},
        errors=(404, 409),
    ),
    Operation(
        name="readQueueHistory",
        method="GET",
        path="/v1/queues/{queue}/history",
        summary="Read the retained messages of a queue without a reader group. Nothing changes.",
        run=readers.read_queue_history,
        answers={200: shapes.HistoryPage},
        errors=(404, 409),
        parameters=(
            ("from", str, "`start` (default), a time, or the position of a message."),
            ("cursor", str, "`nextCursor` of the previous page."),
            ("limit", int, "Maximum number of messages: 1 to 1,000 (default 100)."),
        ),
    ),
)
