"""What malloc keeps: the pages that are free are given back on request, and threads share few arenas."""

from __future__ import annotations

import subprocess
import sys

import pytest

from guest_transport.process import allocator

RESIDENT = """
import re
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) // 1024
"""


def _run(code: str) -> list[int]:
    ended = subprocess.run([sys.executable, "-c", RESIDENT + code], capture_output=True, text=True, check=True, timeout=60)
    return [int(word) for word in ended.stdout.split()]


def test_free_pages_between_blocks_that_stay_are_given_back() -> None:
    before, after = _run("""
from guest_transport.process import allocator
assert allocator.keep_little()
blocks = [bytes(1000) for _ in range(80_000)]
stay = blocks[::100]
del blocks
print(resident())
assert allocator.give_back()
print(resident())
""")
    assert before - after > 50


@pytest.mark.parametrize("bounded", [True, False])
def test_threads_share_two_arenas(bounded: bool) -> None:
    # Each arena besides the main one is a reserved region of 64 MiB in the address space.
    reserved = _run(f"""
import threading
from guest_transport.process import allocator
if {bounded}:
    allocator.keep_little()
together = threading.Barrier(9)
def work():
    kept = [bytes(1000) for _ in range(100)]
    together.wait()
before = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
threads = [threading.Thread(target=work) for _ in range(8)]
threading.stack_size(1 << 16)
for thread in threads:
    thread.start()
while together.n_waiting < 8:
    pass
print((int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) - before) // 1024)
together.wait()
""")[0]
    assert (reserved < 3 * 64) is bounded


def test_without_glibc_nothing_is_set_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "LIBRARY", "libc.so.none")
    assert not allocator.keep_little()
    assert not allocator.give_back()
