"""For all tests: product code that blocks the event loop fails the test that made it do so, no example is timed, no signal is ignored."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster
from hypothesis import settings

from tests.http.chromium import Chromium

# Hypothesis fails an example that takes 200 ms, which says nothing of the code where the machine has other work (seen at a load of 9 on
# two cores: 366 ms, and 0.2 ms when tried again). A test that hangs is ended by pytest-timeout.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Undo what `nohup` and a shell's `&` leave to every program that they start, and so to the programs under test: signals ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What thousands of collected tests keep is no garbage: who collects it in a test searches that test's objects, and not pytest's."""
    gc.collect()
    gc.freeze()


# Only calls with product code in their stack count; a test may write a file where it likes.
PRODUCT = ["guest_service", "guest_metrics", "guest_pages", "guest_contract", "guest_client", "guest_transport", "vmm_proxy"]

# What may block, by the function that does it, each with its reason.
ALLOWED = [
    # Popen waits on a pipe until the child has execed: 0.2 ms, measured by benchmarks/loop_stall.py.
    ("os.read", "subprocess.py", "_execute_child"),
    # One stat and one readlink in sysfs, which is kernel memory: they never wait for a device.
    ("os.stat", "guest_service/telemetry/gate.py", "_is_there"),
    ("os.readlink", "guest_service/inventory.py", "bound_driver"),
    # pytest's own log file, which is /dev/null; a line of the product's log may block its loop, as with any service.
    ("io.TextIOWrapper.write", "logging/__init__.py", "emit"),
    ("io.BufferedWriter.write", "logging/__init__.py", "emit"),
    # gRPC (1.85) joins its poller thread when its last channel or server goes; in a test that may be while product code runs, in a server
    # it is the end of the process.
    ("threading.Lock.acquire", "threading.py", "_wait_for_tstate_lock"),
    # A folder for one socket in the system's place for temporary files, once per listener or guest; other files wait in threads.
    ("os.mkdir", "guest_transport/sockets/private_folder.py", "_made"),
    # From Python 3.12 on mkdtemp also makes that folder's path absolute, which it is: nothing is asked of the system.
    ("os.path.abspath", "guest_transport/sockets/private_folder.py", "_made"),
]


def _watch() -> BlockBuster:
    watch = BlockBuster(PRODUCT)
    for function, file, place in ALLOWED:
        watch.functions[function].can_block_in(file, place)
    return watch


# Made once: finding what there is to watch takes longer than most tests.
WATCH = _watch()


@pytest.fixture(autouse=True)
def no_blocking_call_on_the_loop() -> Iterator[None]:
    """BlockingError instead of a call that blocks a running loop."""
    WATCH.activate()
    try:
        yield
    finally:
        WATCH.deactivate()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser for those tests that look at a page; they are skipped where it is missing."""
    started = Chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.end()
