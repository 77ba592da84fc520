"""The pages of the dashboard. Each module has its handlers and a table of its routes."""

from batonq.api.ui.pages import overview
from batonq.api.ui.routes import Route

ROUTES: tuple[Route, ...] = (*overview.ROUTES,)
