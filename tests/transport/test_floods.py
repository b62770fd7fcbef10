"""What a flood of frames on a few connections costs a real server process, and what an honest caller beside it notices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.transport import floods, ways
from tests.transport.processes import ServerProcess, server_process
from tests.transport.test_processes import _status

SERVING = 1
ATTACKERS = 2
MEMORY_LIMIT_BYTES = 64 << 20

KINDS: dict[str, tuple[Callable[[], Callable[[int], bytes]], int]] = {
    "resets of an unknown method": (lambda: floods.resets("/no.Such/Method"), 100_000),
    "headers alone": (lambda: floods.headers_alone("/test.Door/Wait"), 100_000),
    "huge messages": (lambda: floods.huge_message("/grpc.health.v1.Health/Check"), 4_000),
}


def _memory(server: ServerProcess) -> int:
    return psutil.Process(server.pid).memory_info().rss


@pytest.mark.parametrize("way", ways.NAMES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_costs_little_memory_and_no_other_call(tmp_path: Path, way: str, kind: str) -> None:
    make, calls = KINDS[kind]
    to = ways.way_of(way, tmp_path)
    async with server_process(*to.arguments) as server:
        await server.serving()
        [target] = server.addresses
        assert await _status(to.channel(target)) == SERVING
        before = peak = _memory(server)
        over = threading.Event()

        def attack() -> None:
            for _ in floods.flood(target, make(), calls, to.client_context):
                if over.is_set():
                    return

        attacks = [asyncio.create_task(asyncio.to_thread(attack)) for _ in range(ATTACKERS)]
        try:
            while not all(attack.done() for attack in attacks):
                assert await _status(to.channel(target)) == SERVING
                peak = max(peak, _memory(server))
        finally:
            over.set()
            await asyncio.gather(*attacks)
        assert peak - before < MEMORY_LIMIT_BYTES
