"""Templates: loaded once, escaped always. Jinja takes a while to import: see app.load_soon."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from batonq import __version__
from batonq.api.ui import assets, formats
from batonq.api.ui.backend import Problem, segment
from batonq.api.ui.view import Page

LIVE = "live_"  # blocks of a page's own template with this prefix are updated while the page is open


class Absent(jinja2.Undefined):
    """A field that an answer of REST omits, since it is not set or has its default: it counts as false. A variable that
    no handler has set is a mistake.
    """

    def __str__(self) -> str:
        if self._undefined_obj is jinja2.utils.missing:
            self._fail_with_undefined_error()
        return ""

    def __bool__(self) -> bool:
        if self._undefined_obj is jinja2.utils.missing:
            self._fail_with_undefined_error()
        return False


def _of_known(write: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gets None for an absent field."""

    def wrapped(value: Any, *arguments: Any) -> Any:
        return write(None if isinstance(value, jinja2.Undefined) else value, *arguments)

    return wrapped


class Renderer:
    def __init__(self) -> None:
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=Absent,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters.update({name: _of_known(write) for name, write in formats.FILTERS.items()})
        self.environment.filters["segment"] = segment
        self.environment.tests["problem"] = lambda value: isinstance(value, Problem)
        self.environment.globals.update(asset=assets.url, version=__version__)
        self._macros: Any = self.environment.get_template("macros.html").module
        self.environment.globals["ui"] = self._macros

    def load(self, pause: Callable[[], object]) -> None:
        """Compile all templates, which can be done on another thread; `pause` is called before each."""
        for name in self.environment.list_templates():
            pause()
            self.environment.get_template(name)

    def page(self, page: Page, shared: dict[str, Any]) -> bytes:
        template = self.environment.get_template(page.template)
        return template.render(**shared, **page.values, page=page).encode()

    def blocks(self, page: Page, shared: dict[str, Any]) -> dict[str, str]:
        """The parts of a page that change while it is open: its sentence, and its live blocks."""
        template = self.environment.get_template(page.template)
        context = template.new_context({**shared, **page.values, "page": page})
        parts = {name: "".join(render(context)) for name, render in template.blocks.items() if name.startswith(LIVE)}
        parts["verdict"] = str(self._macros.verdict(page))
        return parts


@cache
def renderer() -> Renderer:
    """Templates are compiled once per process."""
    return Renderer()
