"""The client for programs without asyncio: `from batonq.sync import Baton`. It has the same names, without await.

All threads of a program can share one Baton: concurrent sends and acks of several threads share one request.
"""

from batonq.client.blocking.baton import Baton, connect
from batonq.client.blocking.jobs import Job
from batonq.client.blocking.message import Message
from batonq.client.blocking.queue import Queue
from batonq.client.blocking.reader import Reader
from batonq.client.blocking.topic import Topic

__all__ = ["Baton", "Job", "Message", "Queue", "Reader", "Topic", "connect"]
