"""Templates: loaded once, escaped always. Imported when the first page is opened, since Jinja takes a while to load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from batonq import __version__
from batonq.api.ui import assets, formats
from batonq.api.ui.backend import Problem, segment
from batonq.api.ui.view import Page

LIVE = "live_"  # blocks of a page's own template with this prefix are updated while the page is open


class Renderer:
    def __init__(self) -> None:
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters.update(formats.FILTERS, segment=segment)
        self.environment.tests["problem"] = lambda value: isinstance(value, Problem)
        self.environment.globals.update(asset=assets.url, version=__version__)
        self.environment.globals["ui"] = self.environment.get_template("macros.html").module

    def page(self, page: Page, shared: dict[str, Any]) -> bytes:
        template = self.environment.get_template(page.template)
        return template.render(**shared, **page.values, page=page).encode()

    def blocks(self, page: Page, shared: dict[str, Any]) -> dict[str, str]:
        """The parts of a page that change while it is open: its sentence, and its live blocks."""
        template = self.environment.get_template(page.template)
        context = template.new_context({**shared, **page.values, "page": page})
        parts = {name: "".join(render(context)) for name, render in template.blocks.items() if name.startswith(LIVE)}
        parts["verdict"] = str(self.environment.globals["ui"].verdict(page))
        return parts
