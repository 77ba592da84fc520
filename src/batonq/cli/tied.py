"""A process that does not outlive the one that started it, even if that one is killed. On Linux; elsewhere it may."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends. It stays so over `exec`.

    A child that the parent's end has come before has another parent by now, and ends here.
    """
    if _prctl is None:
        return
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
