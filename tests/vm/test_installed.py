"""Both packages in a machine with systemd as process 1: their units as an owner of the machine gets them, and a proxy on the host outside.

One machine serves all of these tests; each leaves it with both units running.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from guest_api import guest_api_pb2
from tests.vm.conftest import TOKEN
from tests.vm.debian_machine import DebianMachine, debian_machine
from tests.vm.host_proxy import Api, figure, gpu_info, proxy_to, scraped
from tests.vm.machine import END_LIMIT_SECONDS, require_parts
from tests.vm.pci_functions import NVIDIA_CARDS, NVSWITCH, plugged
from tests.vm.vsock_switch import VsockSwitch

pytestmark = [pytest.mark.vm_debian, pytest.mark.timeout(4 * END_LIMIT_SECONDS), pytest.mark.asyncio(loop_scope="module")]

UNITS = ("guest-service", "vmm-proxy")
CAP_NET_ADMIN = 1 << 12
# How long the machine is held from outside: far more than an answer takes, and than a sample lives.
PAUSE_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Installed:
    """The machine, and a proxy on the host that knows it as `vm`."""

    machine: DebianMachine
    api: Api
    pages: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(debian_image: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installed]:
    sockets = Path(tempfile.mkdtemp(prefix="vm"))
    switch = VsockSwitch(sockets, [42])
    pages = sockets / "pages"
    with plugged([*NVIDIA_CARDS, NVSWITCH]) as functions:
        async with (
            switch.running(),
            debian_machine(
                require_parts(),
                debian_image,
                tmp_path_factory.mktemp("machine"),
                sockets,
                devices=[*switch.devices(42), *functions.devices],
                descriptors=functions.descriptors,
            ) as machine,
            proxy_to(f"hvsock:{switch.socket_of(42)}:8000", sockets, "--http", f"unix:{pages}") as api,
        ):
            for unit in UNITS:
                await machine.until(f"{unit}.service", ActiveState="active")
            yield Installed(machine, api, pages)
    shutil.rmtree(sockets)


async def main_pid(machine: DebianMachine, unit: str) -> int:
    return int((await machine.shows(f"{unit}.service", "MainPID"))["MainPID"])


async def status_of(machine: DebianMachine, unit: str) -> dict[str, str]:
    """What the kernel says of a unit's process (proc(5))."""
    text = await machine.said("cat", f"/proc/{await main_pid(machine, unit)}/status")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


async def serves(installed: Installed, unit: str) -> None:
    """A caller of the unit is answered: of the agent the proxy on the host, of the proxy a program in there."""
    if unit == "guest-service":
        await gpu_info(installed.api, installed.machine.console)
    else:
        assert "own" in await installed.machine.said("guestctl", "list", "--timeout", "120", "-o", "json")


async def test_systemd_calls_both_units_started_once_they_say_that_they_listen(installed: Installed) -> None:
    for unit in UNITS:
        shown = await installed.machine.shows(
            f"{unit}.service", "Type", "SubState", "StatusText", "UnitFileState", "WatchdogUSec"
        )
        assert shown.pop("StatusText").startswith("listening on "), shown
        assert shown == {"Type": "notify", "SubState": "running", "UnitFileState": "enabled", "WatchdogUSec": "30s"}
    failed = await installed.machine.said("systemctl", "list-units", "--failed", "--plain", "--no-legend")
    assert "guest-service" not in failed
    assert "vmm-proxy" not in failed


async def test_the_agent_is_root_without_its_powers_and_sees_neither_homes_nor_foreign_temporary_files(
    installed: Installed,
) -> None:
    machine = installed.machine
    status = await status_of(machine, "guest-service")
    assert status["Uid"].split() == ["0"] * 4
    assert int(status["CapBnd"], 16) == CAP_NET_ADMIN
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    await looks_shut(machine, "guest-service")


async def test_the_proxy_is_a_user_of_its_own_without_any_power(installed: Installed) -> None:
    machine = installed.machine
    status = await status_of(machine, "vmm-proxy")
    uid, gid = (await machine.said("id", "-u", "vmm-proxy")).strip(), (await machine.said("id", "-g", "vmm-proxy")).strip()
    assert uid != "0"
    assert (status["Uid"].split(), status["Gid"].split()) == ([uid] * 4, [gid] * 4)
    assert [int(status[name], 16) for name in ("CapBnd", "CapPrm", "CapEff", "CapAmb")] == [0] * 4
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    await looks_shut(machine, "vmm-proxy")


async def looks_shut(machine: DebianMachine, unit: str) -> None:
    """What the unit's process finds where it lives; the same commands succeed outside of it."""
    pid = str(await main_pid(machine, unit))
    await machine.shell("echo other > /tmp/other; echo home > /root/home; test -e /tmp/other -a -e /root/home; touch /usr/mark")
    for hidden in ("/tmp/other", "/root/home"):
        assert (await machine.run("nsenter", "--target", pid, "--mount", "cat", hidden)).status != 0, hidden
    for place in ("/usr", "/etc", "/var", "/sys/kernel", "/proc/sys/kernel"):
        done = await machine.run("nsenter", "--target", pid, "--mount", "touch", f"{place}/mark")
        assert done.status != 0, place
        assert "Read-only file system" in done.said or "/proc" in place, done


async def test_the_agent_may_open_cards_and_no_other_device(installed: Installed) -> None:
    machine = installed.machine
    await machine.shell("test -e /dev/nvidia0 || mknod /dev/nvidia0 c 195 0; test -e /dev/other || mknod /dev/other c 240 0")
    cgroup = (await machine.shows("guest-service.service", "ControlGroup"))["ControlGroup"]
    # No driver is behind either of them, so the one that is allowed is not there, and the other one is refused before that is looked at.
    opened = await machine.run(
        "sh",
        "-c",
        f"echo 0 > /sys/fs/cgroup{cgroup}/cgroup.procs; head -c1 /dev/nvidia0; head -c1 /dev/other; head -c1 /dev/zero | wc -c",
    )
    nvidia, other, zero = opened.said.splitlines()
    assert "No such device" in nvidia
    assert "Operation not permitted" in other
    assert zero == "1"


async def test_the_host_sees_both_cards_through_the_collector_of_the_hardened_unit(installed: Installed) -> None:
    answer = await gpu_info(installed.api, installed.machine.console)
    assert [gpu.index for gpu in answer.gpus] == [0, 1]
    assert all(gpu.uuid and gpu.memory_total_bytes and not gpu.errors for gpu in answer.gpus), answer


async def test_the_proxy_takes_its_secrets_from_the_service_manager_and_lets_in_its_group(installed: Installed) -> None:
    machine = installed.machine
    assert (await machine.said("stat", "-c", "%a %U %G", "/run/vmm-proxy/vmm-proxy.sock")).split() == [
        "660",
        "vmm-proxy",
        "vmm-proxy",
    ]
    assert (
        await machine.run("setpriv", "--reuid=vmm-proxy", "--clear-groups", "cat", "/etc/credstore/vmm-proxy.tokens")
    ).status != 0

    async def asks(token: str = "", groups: str = "vmm-proxy") -> str:
        caller = f"setpriv --reuid=nobody --regid=nogroup --groups={groups}"
        shown = f"--token-file=/tmp/{token}" if token else ""
        return (await machine.run("sh", "-c", f"{caller} guestctl list --timeout 120 -o json {shown}")).said

    await machine.shell(
        f"cd /tmp; echo {TOKEN} > known; echo {'0' * 64} > unknown; chown nobody known unknown; chmod 0600 known unknown"
    )
    (guest,) = json.loads(await asks())["guests"]
    assert (guest["id"], guest["address"]) == ("own", ""), "a member of the group looks"
    (guest,) = json.loads(await asks("known"))["guests"]
    assert guest["address"] == "vsock:local:8000", "addresses are for administrators"
    assert "unauthenticated" in await asks("unknown")
    assert "Permission denied" in await asks(groups="nogroup")


@pytest.mark.parametrize("unit", UNITS)
async def test_a_unit_that_is_killed_serves_again_and_leaves_nothing_of_its_former_self(installed: Installed, unit: str) -> None:
    machine = installed.machine
    pid = await main_pid(machine, unit)
    sockets, folders = await traces(machine, unit)
    await machine.shell(f"kill -KILL {pid}")
    await restarted(machine, unit, pid)
    await serves(installed, unit)
    sockets_now, folders_now = await traces(machine, unit)
    assert sockets_now == sockets
    assert not folders_now & folders, "its relays' folders have names that are never the same"


async def traces(machine: DebianMachine, unit: str) -> tuple[set[str], set[str]]:
    """What a unit has in its folder below /run, and what temporary files, its own /tmp among those of all units."""
    pid = await main_pid(machine, unit)
    sockets = await machine.said("ls", "-A", f"/run/{unit}")
    folders = await machine.shell(f"ls -A /proc/{pid}/root/tmp; ls /tmp | grep -- '-{unit}.service-'")
    return set(sockets.split()), set(folders.split())


async def restarted(machine: DebianMachine, unit: str, former: int) -> None:
    """Wait until systemd has started the unit anew, by itself, and it is ready."""
    try:
        async with asyncio.timeout(END_LIMIT_SECONDS):
            while True:
                shown = await machine.shows(f"{unit}.service", "MainPID", "ActiveState")
                if shown["ActiveState"] == "active" and shown["MainPID"] not in {"0", str(former)}:
                    return
    except TimeoutError:
        raise AssertionError(f"{unit} is not restarted\n{await machine.story(unit)}") from None


async def test_processes_that_no_longer_move_are_killed_by_the_watchdog_and_started_anew(installed: Installed) -> None:
    machine = installed.machine
    pids = {unit: await main_pid(machine, unit) for unit in UNITS}
    await machine.shell(f"kill -STOP {' '.join(map(str, pids.values()))}")
    for unit, pid in pids.items():
        await restarted(machine, unit, pid)
        assert "Watchdog timeout" in await machine.story(unit)
        await serves(installed, unit)


@pytest.mark.parametrize("unit", UNITS)
async def test_stopping_a_unit_is_clean_and_takes_its_socket_away(installed: Installed, unit: str) -> None:
    machine = installed.machine
    await machine.said("systemctl", "stop", unit)
    shown = await machine.shows(f"{unit}.service", "ActiveState", "Result", "ExecMainCode", "ExecMainStatus")
    left = await machine.run("ls", "-A", f"/run/{unit}")
    await machine.said("systemctl", "start", unit)
    # 1: it exited by itself (waitid(2)).
    assert shown == {"ActiveState": "inactive", "Result": "success", "ExecMainCode": "1", "ExecMainStatus": "0"}, (
        await machine.story(unit)
    )
    assert left.status != 0, left


async def test_of_a_machine_that_is_held_from_outside_only_the_proxy_knows_how_old_its_answer_is(installed: Installed) -> None:
    machine, api = installed.machine, installed.api
    await gpu_info(api, machine.console)
    await scraped(installed.pages, "vm")
    before = await figure(installed.pages, "dstack_gpu_sample_age_seconds", "vm")
    await machine.monitor.does("stop")
    held = time.monotonic()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.GpuInfo(guest_api_pb2.Id(id="vm"), timeout=PAUSE_SECONDS)
        # Either the caller's time is up, or the connection no longer answers its pings.
        assert refused.value.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}
        first = await figure(installed.pages, "vmm_proxy_guest_answer_age_seconds", "vm")
        async with asyncio.timeout(END_LIMIT_SECONDS):
            # Each scrape has the guest asked, and this one does not answer.
            while await figure(installed.pages, "vmm_proxy_guest_up", "vm") != 0 or time.monotonic() < held + PAUSE_SECONDS:
                # An emulated guest has little time for scrapes.
                await asyncio.sleep(0.3)
        second = await figure(installed.pages, "vmm_proxy_guest_answer_age_seconds", "vm")
        cards = await figure(installed.pages, "dstack_gpu_sample_age_seconds", "vm")
    finally:
        await machine.monitor.does("cont")
    answer = await gpu_info(api, machine.console)
    passed = time.monotonic() - held
    assert first < second
    assert second > PAUSE_SECONDS - 1
    assert cards > before + PAUSE_SECONDS - 1
    # The guest's clocks stood still: the pause is not in the age that it tells itself.
    assert answer.sample_age_ms / 1000 < before + passed - PAUSE_SECONDS / 2, answer
