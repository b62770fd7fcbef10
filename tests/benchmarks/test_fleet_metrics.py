"""The guest processes of benchmarks/fleet_guests.py."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path

import pytest

from benchmarks.fleet_guests import guest_processes


async def test_a_guest_process_that_cannot_serve_ends_the_benchmark_with_its_status(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="a guest process ended with status 1 before it served"):
        async with asyncio.timeout(50), guest_processes(4, str(tmp_path / "is-not-there")):
            raise AssertionError("nobody serves")
    assert not multiprocessing.active_children()


async def test_guest_processes_serve_and_are_gone_afterwards(short_path: Path) -> None:
    async with guest_processes(8, str(short_path)):
        assert sorted(int(path.name) for path in short_path.iterdir()) == list(range(8))
    assert not multiprocessing.active_children()
