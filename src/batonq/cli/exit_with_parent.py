"""A process that exits with its parent, even if the parent is killed. Works on Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent exits. This survives `exec`.

    If the parent has already exited, this process has another parent by now and exits here.
    """
    if _prctl is None:
        return
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
