"""Reload on SIGHUP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_transport.errors import SettingsError
from guest_transport.process.reload import reloaded_on_hangup
from guest_transport.process.sd_notify import Notifier


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


async def heard(ear: socket.socket) -> bytes:
    return (await asyncio.get_running_loop().sock_recv(ear, 4096)).split(b"\n")[0]


class Configuration:
    """Counts how often it was read; `refuse` makes the next reading fail."""

    def __init__(self) -> None:
        self.readings = 0
        self.refuse: Exception | None = None
        self.held: asyncio.Event | None = None

    async def read(self) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.refuse is not None:
            raise self.refuse
        self.readings += 1


async def test_a_hangup_reloads_between_reloading_and_ready(ear: socket.socket) -> None:
    configuration = Configuration()
    async with reloaded_on_hangup(Notifier(ear.getsockname()), configuration.read):
        os.kill(os.getpid(), signal.SIGHUP)
        assert await heard(ear) == b"RELOADING=1"
        assert await heard(ear) == b"READY=1"
    assert configuration.readings == 1


@pytest.mark.parametrize("fault", [SettingsError("config.toml: gpu.refresh: unknown key"), RuntimeError("a fault of ours")])
async def test_a_refused_reload_is_logged_and_the_next_one_works(
    fault: Exception, ear: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration()
    async with reloaded_on_hangup(Notifier(ear.getsockname()), configuration.read):
        configuration.refuse = fault
        os.kill(os.getpid(), signal.SIGHUP)
        assert [await heard(ear), await heard(ear)] == [b"RELOADING=1", b"READY=1"]
        configuration.refuse = None
        os.kill(os.getpid(), signal.SIGHUP)
        assert [await heard(ear), await heard(ear)] == [b"RELOADING=1", b"READY=1"]
    assert configuration.readings == 1
    assert str(fault) in caplog.text
    assert "stays in force" in caplog.text


async def test_hangups_during_a_reload_make_exactly_one_more(ear: socket.socket) -> None:
    configuration = Configuration()
    configuration.held = asyncio.Event()
    async with reloaded_on_hangup(Notifier(ear.getsockname()), configuration.read):
        os.kill(os.getpid(), signal.SIGHUP)
        assert await heard(ear) == b"RELOADING=1"
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        configuration.held.set()
        assert [await heard(ear), await heard(ear), await heard(ear)] == [b"READY=1", b"RELOADING=1", b"READY=1"]
    assert configuration.readings == 2


async def test_nothing_is_left_behind_afterwards(ear: socket.socket) -> None:
    async with reloaded_on_hangup(Notifier(ear.getsockname()), Configuration().read):
        pass
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


async def test_after_it_hangups_are_what_they_were_before_and_end_nobody_who_ignored_them() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with reloaded_on_hangup(Notifier(None), Configuration().read):
            pass
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
