"""Middleware for web applications that send messages: it refuses requests while the queue is too deep."""

from batonq.web.asgi import ShedLoadASGI
from batonq.web.depth import AsyncDepth, Depth
from batonq.web.shedding import Refusal, Rule, Shedder
from batonq.web.wsgi import ShedLoadWSGI

__all__ = ["AsyncDepth", "Depth", "Refusal", "Rule", "ShedLoadASGI", "ShedLoadWSGI", "Shedder"]
