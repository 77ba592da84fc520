"""A small HTTP/1.1 server: bytes from sockets to requests for a handler, and its answers back. No API lives here."""

from batonq.api.http.gate import CredentialGate, Gate, LocalGate
from batonq.api.http.limits import HttpLimits
from batonq.api.http.messages import Direct, Handler, Reply, Request, Response
from batonq.api.http.router import Router, direct_under
from batonq.api.http.server import HttpServer

__all__ = [
    "CredentialGate",
    "Direct",
    "Gate",
    "Handler",
    "HttpLimits",
    "HttpServer",
    "LocalGate",
    "Reply",
    "Request",
    "Response",
    "Router",
    "direct_under",
]
