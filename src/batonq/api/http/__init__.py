"""A small HTTP/1.1 server: reads requests from sockets, calls a handler, and writes the responses. It knows no API."""

from batonq.api.http.gate import CredentialGate, Gate, LocalGate
from batonq.api.http.limits import HttpLimits
from batonq.api.http.messages import Direct, Handler, Heads, Reply, Request, Response
from batonq.api.http.router import Router, direct_under
from batonq.api.http.server import HttpServer

__all__ = [
    "CredentialGate",
    "Direct",
    "Gate",
    "Handler",
    "Heads",
    "HttpLimits",
    "HttpServer",
    "LocalGate",
    "Reply",
    "Request",
    "Response",
    "Router",
    "direct_under",
]
