"""`python -m examples.transcode [--images N]`: the whole pipeline on this machine; exit code 0 if all checks pass."""

from __future__ import annotations

import sys

from examples.harness.entry import main
from examples.transcode.run import run

if __name__ == "__main__":
    sys.exit(main(run, "transcode", "images", 200, "Transcoding {} images"))
