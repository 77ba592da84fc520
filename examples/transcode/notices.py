"""Notifications: a consumer of the completion events, which would push them to browsers.

Its inbox prevents duplicate notifications: the event's marker and its effect commit in one transaction.
"""

from __future__ import annotations

from batonq import outbox
from batonq.client import Message
from batonq.worker import Worker
from examples.transcode.database import Database
from examples.transcode.plan import EVENTS


def notifier(url: str, database: Database) -> Worker:
    app = Worker(url, name="notifier")

    @app.task(queue=EVENTS, concurrency=4)
    def tell(message: Message) -> None:
        image_id = message.body["image_id"]
        with database.transaction() as connection:
            if not outbox.seen(connection, message.id, consumer="notices"):
                connection.execute(
                    "INSERT INTO notices VALUES (%s, 1) ON CONFLICT (image_id) DO UPDATE SET times = notices.times + 1",
                    (image_id,),
                )

    return app
