"""The end of a server that is told to stop before it serves: at once, and as clean as any other.

Importing gRPC takes a third of a second on a small machine, and a supervisor that changes its mind then is no fault. Nothing is bound or
started yet, so there is nothing to end in order; running.run() takes the signals over. Signals that a supervisor left blocked are let
through: the mask is inherited, and a server with SIGTERM blocked could be ended by SIGKILL only. Rejected: blocking the signals until then
(children would inherit the mask).
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def end_on_signals() -> None:
    """From here on SIGTERM and SIGINT end this process with status 0, whatever mask it was started with."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD})


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)
