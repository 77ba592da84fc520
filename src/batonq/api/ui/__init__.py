"""The dashboard: server-rendered pages under `/ui`, live over server-sent events, without a build step.

A page is read and changed only through operations of the REST API (`view.backend`), so it can do nothing that REST
cannot, and it sees what its caller may see.

To add a page:

1. Write its handler in `pages/`, one module per subject::

       async def show(view: View) -> Page:
           found = await view.backend.get(path_of("jobs"), state=view.query.get("state"))
           return Page("Jobs", "jobs.html", sentence="2 jobs run.", level="ok", values={"jobs": found["jobs"]})

   and the module's table: `ROUTES = (Route("/ui/jobs", show, tab="jobs"),)`. Add the table to `pages/__init__.py`. A
   route with `act` takes the page's forms. It returns a Redirect with a notice, or the page again with what is wrong.
   A `Problem` that a handler does not catch becomes an error page. For a part of a page that may fail alone use
   `view.optional(path)`, and in the template `{% if jobs is problem %}{{ ui.problem(jobs) }}{% endif %}`.

2. Write its template in `templates/`: it extends `base.html` and fills the blocks `content` and, at the right of the
   title, `aside`. The page's sentence is shown by the base. Pieces that pages share are in `macros.html`, as
   `ui.command(...)`, `ui.figure(...)` and so on; values are written with the filters of `formats.py`:
   `{{ count|number }}`, `{{ seconds|duration }}`, `{{ at_ms|when(now_ms) }}`, `{{ name|segment }}` in a URL. All values
   are escaped.

3. What changes while the page is open goes into a block whose name begins with `live_`, inside an element that names
   it::

       <div data-live="live_jobs">{% block live_jobs %} … {% endblock %}</div>

   The server renders the block again every two seconds and sends it if it has changed. The browser changes it in place.
   Rows of a table need `data-key`, a text that stays the same for the same thing; `j` and `k` move over them.
   Forms with inputs do not belong in a live block.

4. Every form is a POST with `{{ ui.form_token(form_token) }}` in it, and is shown only `{% if view.can_write %}`.
   Buttons say what they will do, with numbers; what destroys asks for the queue's name. Scripts and styles are never
   inline: the content security policy forbids them. Tables that carry `class="stack"` and cells with `data-label`
   become lists on a phone.

5. Test it in `tests/dashboard`, where `pages.py` has a fake REST API and a client, and its flows with a real browser in
   `tests/ui`.

Everything else is in a module of its own: `app.py` (requests), `sessions.py` (cookies, form tokens), `access.py` (who
may sign in), `backend.py` (REST within the process), `live.py` (streams), `rendering.py` (templates), `assets.py`
(files in `static/`).
"""

from batonq.api.ui.access import DashboardAccess
from batonq.api.ui.app import UiApp

__all__ = ["DashboardAccess", "UiApp"]
