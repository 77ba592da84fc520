"""REST v1: queues, messages, leases and jobs as plain HTTP resources, in JSON or MessagePack."""

from batonq.api.rest.app import RestApp
from batonq.api.rest.express import ExpressRest

__all__ = ["ExpressRest", "RestApp"]
