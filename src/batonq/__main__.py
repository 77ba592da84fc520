"""`python -m batonq` is the `baton` command."""

from __future__ import annotations

import sys

from batonq.cli.main import main

sys.exit(main())
