"""Sockets that the service manager opened."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_transport.errors import SettingsError
from guest_transport.process.socket_activation import take_sockets

# What a service manager does between fork and exec: put the sockets at 3 and up, and say so. A shell cannot, so a first Python does it.
STARTER = """
import fcntl, os, sys
fds = [int(fd) for fd in sys.argv[1].split(",")]
high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in fds]
for place, fd in enumerate(high, 3):
    os.dup2(fd, place, inheritable=True)
os.environ.update(LISTEN_FDS=str(len(fds)), LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.executable, [sys.executable, "-c", sys.argv[3]])
"""
SERVICE = """
import json, os
from guest_transport.errors import StartError
from guest_transport.process.socket_activation import take_sockets
try:
    taken = take_sockets(os.environ, os.getpid())
except StartError as error:
    print(json.dumps({"refused": str(error)}))
    raise SystemExit(error.exit_status)
print(json.dumps({
    "taken": {name: [listener.getsockname()[1] for listener in held] for name, held in taken.items()},
    "inheritable": [listener.get_inheritable() for held in taken.values() for listener in held],
    "left": sorted(name for name in os.environ if name.startswith("LISTEN_")),
}))
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def activated(sockets: list[socket.socket], names: str) -> tuple[int, dict[str, object]]:
    fds = [held.fileno() for held in sockets]
    done = subprocess.run(
        [sys.executable, "-c", STARTER, ",".join(map(str, fds)), names, SERVICE],
        pass_fds=fds,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_a_listening_socket_is_taken_over_under_its_name(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert activated([listener], "http") == (0, {"taken": {"http": [port]}, "inheritable": [False], "left": []})


def test_two_sockets_of_one_name_are_both_taken(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as second:
        ports = [held.getsockname()[1] for held in (listener, second)]
        status, answer = activated([listener, second], "http:http")
    assert (status, answer["taken"]) == (0, {"http": ports})


def test_a_socket_that_does_not_listen_is_refused_with_what_to_write(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as connected:
        status, answer = activated([connected], "http")
    assert status == 1
    assert "ListenStream=" in str(answer["refused"])


def test_a_datagram_socket_is_refused() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        status, answer = activated([datagram], "http")
    assert (status, "not a listening stream socket" in str(answer["refused"])) == (1, True)


def test_names_that_do_not_match_the_sockets_are_refused(listener: socket.socket) -> None:
    status, answer = activated([listener], "http:metrics")
    assert (status, "2 names for 1 sockets" in str(answer["refused"])) == (2, True)


def test_sockets_meant_for_another_process_are_left_alone() -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    assert take_sockets(environ, os.getpid()) == {}
    assert environ == {}


def test_without_sockets_there_are_none() -> None:
    assert take_sockets({}, os.getpid()) == {}


@pytest.mark.parametrize("count", ["0", "-1", "many", "65", "1e2"])
def test_a_count_that_makes_no_sense_is_refused(count: str) -> None:
    with pytest.raises(SettingsError, match="LISTEN_FDS"):
        take_sockets({"LISTEN_FDS": count, "LISTEN_PID": str(os.getpid())}, os.getpid())
