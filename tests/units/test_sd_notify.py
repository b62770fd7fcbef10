"""What the service manager is told."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_transport.process.sd_notify import Notifier


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    """The service manager's end of the notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def taken(ear: socket.socket, **environ: str) -> Notifier:
    return Notifier.take({"NOTIFY_SOCKET": ear.getsockname(), **environ}, os.getpid())


def test_ready_and_stopping_are_told_with_their_status(ear: socket.socket) -> None:
    notifier = taken(ear)
    notifier.ready("serving 2 addresses")
    notifier.stopping()
    assert ear.recv(4096) == b"READY=1\nSTATUS=serving 2 addresses"
    assert ear.recv(4096) == b"STOPPING=1"


def test_a_status_cannot_smuggle_in_an_assignment(ear: socket.socket) -> None:
    taken(ear).stopping("fine\nMAINPID=1\r\nREADY=1")
    assert ear.recv(4096) == b"STOPPING=1\nSTATUS=fine MAINPID=1 READY=1"


def test_reloading_says_when_by_the_monotonic_clock(ear: socket.socket) -> None:
    before = time.monotonic_ns() // 1000
    taken(ear).reloading()
    first, second = ear.recv(4096).split(b"\n")
    assert first == b"RELOADING=1"
    assert before <= int(second.removeprefix(b"MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


def test_an_abstract_socket_is_reached() -> None:
    name = f"guestscope-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"\0{name}")
        ear.setblocking(False)
        Notifier(f"@{name}").ready()
        assert ear.recv(4096) == b"READY=1"


def test_without_a_service_manager_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier.take({}, os.getpid())
    notifier.ready("x")
    notifier.watchdog()
    assert notifier.watchdog_seconds is None
    assert caplog.records == []


def test_a_service_manager_that_is_gone_is_complained_about_once(ear: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    notifier = taken(ear)
    ear.close()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            notifier.watchdog()
    assert len(caplog.records) == 1
    assert "WATCHDOG=1" in caplog.text


def test_an_address_of_another_kind_is_refused_in_words(caplog: pytest.LogCaptureFixture) -> None:
    Notifier("vsock:2:1234").ready()
    assert "vsock:2:1234" in caplog.text


def test_a_child_does_not_inherit_the_place_of_the_service(ear: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
    notifier = Notifier.take(environ, os.getpid())
    assert notifier.watchdog_seconds == 1.0
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "environ",
    [
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {},
    ],
)
def test_a_watchdog_that_is_not_for_this_process_or_makes_no_sense_is_none(ear: socket.socket, environ: dict[str, str]) -> None:
    assert taken(ear, **environ).watchdog_seconds is None


async def test_a_running_loop_keeps_telling_the_watchdog_and_then_stops(ear: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async with taken(ear, WATCHDOG_USEC="10000").watched():
        for _ in range(3):
            assert await loop.sock_recv(ear, 4096) == b"WATCHDOG=1"
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_without_a_watchdog_no_task_is_started(ear: socket.socket) -> None:
    async with taken(ear).watched():
        assert asyncio.all_tasks() == {asyncio.current_task()}
