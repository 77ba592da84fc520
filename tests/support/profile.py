"""How hard the tests look: `fast`, which plain pytest uses, or `full`, which `make test` does."""

from __future__ import annotations

import os

PROFILE = os.environ.get("BATON_TEST_PROFILE", "fast")
FULL = PROFILE == "full"
