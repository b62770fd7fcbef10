"""A service that behaves as it is told: `python -m tests.soak.stand_in MODE [FILE]`.

Modes: `good` says READY, tells the watchdog, ends well on SIGTERM; `refuses` exits with 2 and a line; `deaf` takes no notice of SIGTERM;
`leaves` exits with 3 on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

mode = sys.argv[1]
if mode == "refuses":
    sys.exit("stand-in: the configuration is wrong")
ended = threading.Event()
signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "deaf" else lambda *_: ended.set())
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
    manager.connect(os.environ["NOTIFY_SOCKET"])
    manager.send(b"READY=1\nSTATUS=here")
    while not ended.wait(int(os.environ["WATCHDOG_USEC"]) / 2e6):
        manager.send(b"WATCHDOG=1")
sys.exit(3 if mode == "leaves" else 0)
