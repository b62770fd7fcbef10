"""An agent with few file descriptors, and callers that want all of them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.agent.agent import running_agent

DESCRIPTORS = 64
# More than the agent has for all its doors together.
CROWD = 100
ANSWER_SECONDS = 10


@contextmanager
def crowd_at(address: str) -> Iterator[None]:
    """Connections that say nothing."""
    host, _, port = address.rpartition(":")
    with ExitStack() as held:
        for _ in range(CROWD):
            connection = held.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
        yield


def scrape(address: str) -> bytes:
    """The first bytes of a page."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return connection.recv(15)


def taken(pid: int) -> None:
    """Return when the process has no descriptor left; nothing else tells it."""
    deadline = time.monotonic() + 20
    while len(os.listdir(f"/proc/{pid}/fd")) < DESCRIPTORS:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_with_few_descriptors_a_crowd_neither_keeps_a_scraper_out_nor_fills_the_log(short_path: Path) -> None:
    doors = ("--grpc", f"unix:{short_path}/g.sock", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    limit = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    with running_agent("--simulate", "none", *doors, ready="listening for HTTP on", prefix=limit) as agent:
        pages = agent.http()
        with crowd_at(pages):
            assert scrape(pages) == b"HTTP/1.1 200 OK"
        before = len(agent.lines)
        host, _, port = pages.rpartition(":")
        with crowd_at(agent.log_line("listening on 127.0.0.1").rpartition(" ")[2]):
            # gRPC limits no connections: it takes every descriptor.
            taken(agent.process.pid)
            with socket.create_connection((host, int(port))):
                agent.log_line("out of system resource")
        assert scrape(pages) == b"HTTP/1.1 200 OK"
        assert len(agent.lines) - before < 20
        assert agent.end() == 0
