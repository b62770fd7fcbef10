"""An agent with few file descriptors, and callers that want all of them."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from tests.agent.agent import running_agent
from tests.logs.servers import counted

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
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.recv(15)


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """The process gets no descriptor meanwhile, whatever it has and lets go of: its limit is below what is open anyway."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def info(address: str) -> str:
    """The version that GuestApi.Info tells."""
    with grpc.insecure_channel(address) as channel:
        answer: guest_api_pb2.GuestInfo = guest_api_pb2_grpc.GuestApiStub(channel).Info(
            empty_pb2.Empty(), timeout=ANSWER_SECONDS, wait_for_ready=True
        )
        return answer.version


def test_with_few_descriptors_a_crowd_neither_keeps_a_scraper_out_nor_fills_the_log(short_path: Path) -> None:
    doors = ("--grpc", f"unix:{short_path}/g.sock", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    limit = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    with running_agent("--simulate", "none", *doors, ready="listening for HTTP on", prefix=limit) as agent:
        pages, calls = agent.http(), agent.log_line("listening on 127.0.0.1").rpartition(" ")[2]
        with crowd_at(pages):
            assert scrape(pages) == b"HTTP/1.1 200 OK"
        # gRPC limits no connections: how many it takes of the crowd, and when it lets go of them, is its own affair.
        with crowd_at(calls), without_descriptors(agent.process.pid), crowd_at(pages):
            agent.log_line("out of system resource")
        assert scrape(pages) == b"HTTP/1.1 200 OK"
        assert info(calls)
        assert agent.end() == 0
        # It is tried again each second; an accept loop that spins fails hundreds of times at once.
        assert counted(agent.lines, "out of system resource") < 100
        assert len(agent.lines) < 40
