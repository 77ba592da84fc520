"""`python -m examples.webhooks [--events N]`: the dispatcher and its receivers; exit code 0 if all checks pass."""

from __future__ import annotations

import sys

from examples.harness.entry import main
from examples.webhooks.run import run

if __name__ == "__main__":
    sys.exit(main(run, "webhooks", "events", 50, "Delivering {} events to three receivers"))
