"""A real server under load, scraped a few times: what the expressions of dashboard and alert rules are evaluated on."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from batonq.errors import BatonError
from batonq.sync import Baton, Topic
from batonq.worker import Message, Worker
from tests.monitoring.promql import Scrape, scrape
from tests.system.process import ServerProcess
from tests.worker.memory import MemorySource
from tests.worker.support import work

SAMPLED_S = 5.5  # until the server has updated the metrics that it samples
EVERY_S = 60.0  # between two scrapes, as far as the expressions know


class Scraper:
    """Scrapes a server as Prometheus does, once per minute of its own time."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.scrapes: list[Scrape] = []
        self._context = context

    def scrape(self, worker: str = "") -> None:
        with urllib.request.urlopen(f"{self.url}/metrics", context=self._context) as answer:
            text = answer.read().decode()
        at_s = (len(self.scrapes) + 1) * EVERY_S
        found = scrape(text, at_s, job="baton", instance="here")
        samples = found.samples | {"up": {(("instance", "here"), ("job", "baton")): 1.0}}
        if worker:
            samples |= scrape(worker, at_s, job="baton-worker", instance="worker").samples
        self.scrapes.append(Scrape(at_s, samples))

    def age(self, seconds: float) -> None:
        """Move the clock of the server's queues."""
        request = urllib.request.Request(
            f"{self.url}/_baton/clock/advance",
            json.dumps({"seconds": seconds}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()


def worker_page(messages: int) -> str:
    """The metrics page of a worker that got this many messages, half of which failed for good."""
    source = MemorySource()
    app = Worker(source=source)

    @app.task(queue="q", name="handle", poison=[RuntimeError])
    async def handle(message: Message) -> None:
        if message.body % 2:
            raise RuntimeError("no")

    source.send("q", *range(messages))
    work(app, lambda: source.left == 0)
    return app.metrics_text()


@contextmanager
def loaded(directory: Path) -> Iterator[list[Scrape]]:
    """Scrapes of a server with every kind of trouble that a test can make in a few seconds."""
    with ServerProcess(directory) as server, Baton(server.url, retries=0) as baton:
        scraper = Scraper(server.url)
        jobs = baton.create_queue("jobs", max_receives=1, dead_letter_queue="jobs-dead", sla=5)
        stuck = baton.create_queue("stuck")
        lost = baton.create_queue("lost", retention=60)
        fifo = baton.create_queue("steps.fifo", fifo=True)
        baton.create_queue("idle").send("nobody comes")
        slow = baton.create_queue("slow", visibility=1, max_receives=0)
        sqs = boto3.client(
            "sqs", endpoint_url=server.url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        news = _fan_out(baton)
        _round(baton, sqs)
        scraper.scrape(worker_page(4))
        baton.queue("gone").delete()
        for number in range(3):
            news.publish(number)  # one for `tight`; the others wait, and those for `gone` are dropped
        jobs.send_many(range(100))
        for message in jobs.receive(40, wait=0):
            message.ack()
        jobs.nack_many([_failed(message.receipt) for message in jobs.receive(30, wait=0)])
        stuck.send("poison")
        stuck.nack_many([_failed(message.receipt, dead_letter=True) for message in stuck.receive(1, wait=0)])
        lost.send_many(range(3))
        for number in range(3):
            fifo.send(number, group="g")
        fifo.receive(1, wait=0, visibility=600)
        slow.send_many(range(10))
        slow.receive(10, wait=0)
        _round(baton, sqs)
        time.sleep(SAMPLED_S)
        baton.queue("jobs-dead").redrive("idle", rate=1)
        scraper.scrape(worker_page(20))
        scraper.age(30)
        slow.receive(10, wait=0)
        _round(baton, sqs)
        time.sleep(SAMPLED_S)
        scraper.scrape(worker_page(40))
        scraper.age(100)
        time.sleep(SAMPLED_S)
        scraper.scrape(worker_page(60))
        sqs.close()
        yield scraper.scrapes


def _fan_out(baton: Baton) -> Topic:
    """A topic with a queue that is soon full and one that will be gone, a reader group that does not read, a schedule
    that will wait for the full queue, and a paused queue.
    """
    tight = baton.create_queue("tight", max_messages=1)
    baton.create_queue("gone")
    news = baton.create_topic("news")
    for queue in ("tight", "gone"):
        news.subscribe(queue)
    journal = baton.create_queue("journal", retain=3_600)
    journal.send("entry")
    journal.reader("analytics").create()
    tight.schedules.create("often", "tick", rate=1)
    baton.create_queue("held").pause()
    return news


def _round(baton: Baton, sqs: Any) -> None:
    """Requests of both APIs, some of which fail."""
    url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    for message in sqs.receive_message(QueueUrl=url).get("Messages", []):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    baton.queue("jobs").stats()
    try:
        baton.queue("nope").send("x")
    except BatonError:
        pass


def _failed(receipt: str, dead_letter: bool = False) -> Any:
    from batonq.client import Nack

    return Nack(receipt, reason="no", error_class="RuntimeError", dead_letter=dead_letter)
