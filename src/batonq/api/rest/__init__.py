"""REST v1: queues, messages, leases and jobs as plain HTTP resources, in JSON or MessagePack."""

from batonq.api.rest.app import RestApp

__all__ = ["RestApp"]
