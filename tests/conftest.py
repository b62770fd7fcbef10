"""For all tests: product code that blocks the event loop fails the test that made it do so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster

# Only calls with product code in their stack count; a test may write a file where it likes.
PRODUCT = ["guest_service", "guest_metrics", "guest_client", "guest_transport", "vmm_proxy"]

# What may block, by the function that does it, each with its reason.
ALLOWED = [
    # Popen waits on a pipe until the child has execed: 0.2 ms, measured by benchmarks/loop_stall.py.
    ("os.read", "subprocess.py", "_execute_child"),
    # One stat and one readlink in sysfs, which is kernel memory: they never wait for a device.
    ("os.stat", "guest_service/telemetry/gate.py", "_is_there"),
    ("os.readlink", "guest_service/inventory.py", "bound_driver"),
    # Templates and assets of the package, once, when a server is built and nobody is served yet.
    ("os.listdir", "guest_transport/http/pages.py", "__init__"),
    ("os.listdir", "guest_transport/http/pages.py", "templates"),
    ("io.BufferedReader.read", "guest_transport/http/pages.py", "__init__"),
    ("io.TextIOWrapper.read", "guest_transport/http/pages.py", "templates"),
    # gRPC (1.85) joins its poller thread when its last channel or server goes; in a test that may be while product code runs, in a server
    # it is the end of the process.
    ("threading.Lock.acquire", "threading.py", "_wait_for_tstate_lock"),
    # A folder for one socket in the system's place for temporary files, once per listener or guest; other files wait in threads.
    ("os.mkdir", "guest_transport/unix_sockets.py", "__init__"),
]


@pytest.fixture(autouse=True)
def no_blocking_call_on_the_loop() -> Iterator[None]:
    """BlockingError instead of a call that blocks a running loop."""
    watch = BlockBuster(PRODUCT)
    for function, file, place in ALLOWED:
        watch.functions[function].can_block_in(file, place)
    watch.activate()
    try:
        yield
    finally:
        watch.deactivate()
