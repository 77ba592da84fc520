"""The client for programs without asyncio: `from batonq.sync import Baton`. The same names, without await.

A Baton may be shared by all threads of a program: sends and acknowledgements of several threads at once go into one
request.
"""

from batonq.client.blocking.baton import Baton, connect
from batonq.client.blocking.jobs import Job
from batonq.client.blocking.message import Message
from batonq.client.blocking.queue import Queue

__all__ = ["Baton", "Job", "Message", "Queue", "connect"]
