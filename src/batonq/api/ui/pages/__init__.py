"""The pages of the dashboard. Each module has its handlers and a table of its routes."""

from batonq.api.ui.pages import (
    alarms,
    cluster,
    dead_letters,
    jobs,
    keys,
    message,
    messages,
    overview,
    queue,
    queues,
    redrive,
    reports,
    start,
    workers,
)
from batonq.api.ui.routes import Route

ROUTES: tuple[Route, ...] = (
    *overview.ROUTES,
    *queues.ROUTES,
    *queue.ROUTES,
    *messages.ROUTES,
    *message.ROUTES,
    *dead_letters.ROUTES,
    *redrive.ROUTES,
    *jobs.ROUTES,
    *workers.ROUTES,
    *cluster.ROUTES,
    *alarms.ROUTES,
    *keys.ROUTES,
    *reports.ROUTES,
    *start.ROUTES,
)
