"""The off switch: who may, once only, and after the answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from guest_service.host_facts.power import Power, ShutdownRefusedError


async def finished(power: Power) -> None:
    assert power.command is not None
    await power.command


@pytest.mark.parametrize(
    ("allow", "local", "accepted"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_configuration_decides_and_else_the_kind_of_listener(
    allow: bool | None, local: bool, accepted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    power = Power(["true"], allow_shutdown=allow)
    if accepted:
        assert power.request("ipv4:192.0.2.7:1", local_listener=local)
    else:
        with pytest.raises(ShutdownRefusedError):
            power.request("ipv4:192.0.2.7:1", local_listener=local)
    (record,) = caplog.records
    assert "ipv4:192.0.2.7:1" in record.message
    assert ("accepted" in record.message) is accepted


async def test_the_command_runs_once_however_often_it_is_asked(tmp_path: Path) -> None:
    power = Power(["sh", "-c", f"echo off >> {tmp_path}/done"])
    for number in range(5):
        if power.request(f"unix:{number}", local_listener=True):
            power.power_off()
    await finished(power)
    assert not power.request("unix:late", local_listener=True)
    assert (tmp_path / "done").read_text() == "off\n"


async def test_an_accepted_call_starts_nothing_before_it_is_answered(tmp_path: Path) -> None:
    power = Power(["sh", "-c", f"echo off >> {tmp_path}/done"])
    assert power.request("unix:", local_listener=True)
    assert power.command is None


@pytest.mark.parametrize("command", [["false"], ["no-such-command-here"], ["/etc/passwd"]])
async def test_after_a_command_that_failed_the_next_call_tries_again(
    command: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    power = Power(command)
    assert power.request("unix:", local_listener=True)
    power.power_off()
    await finished(power)
    assert "the guest stays up" in caplog.text
    assert power.request("unix:", local_listener=True)


async def test_the_command_outlives_the_agent_that_started_it(tmp_path: Path) -> None:
    for name in ("started", "go", "done"):
        os.mkfifo(tmp_path / name)
    power = Power(["sh", "-c", f"cd {tmp_path}; echo > started; read line < go; echo off > done"])
    power.request("unix:", local_listener=True)
    power.power_off()
    task = power.command
    assert task is not None
    await asyncio.to_thread((tmp_path / "started").read_text)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread((tmp_path / "go").write_text, "go\n")
    assert await asyncio.to_thread((tmp_path / "done").read_text) == "off\n"
