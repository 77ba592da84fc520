"""How hard the tests look: `fast`, which plain pytest uses, `full`, which `make test` does, or `search`, which looks as
hard as `full` and at other examples each time.
"""

from __future__ import annotations

import os

PROFILE = os.environ.get("BATON_TEST_PROFILE", "fast")
FULL = PROFILE in ("full", "search")
