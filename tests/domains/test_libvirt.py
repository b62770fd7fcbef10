"""Guests that a real libvirtd tells of, over its real protocol: libvirt's own test driver behind a daemon of the test's own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.domains.libvirt_daemon import LibvirtDaemon, module_environment
from tests.eventually import eventually
from tests.proxy import processes
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.libvirt.follower import Follower
from vmm_proxy.directory.libvirt.guests import LibvirtGuests
from vmm_proxy.directory.libvirt.report import Domain

ONE = "11111111-1111-1111-1111-111111111111"
TWO = "22222222-2222-2222-2222-222222222222"
VSOCK = "<vsock model='virtio'><cid auto='no' address='{}'/></vsock>"
HOSTDEV = """<hostdev mode='subsystem' type='pci' managed='yes'>
<source><address domain='0x0000' bus='0x{:02x}' slot='0x00' function='0x0'/></source></hostdev>"""


class Followed:
    """A directory that follows the daemon, with the changes it made."""

    def __init__(
        self, uri: str, sysfs: Path, modules: Path | None, *, keepalive_seconds: int = 5, patience_seconds: float = 30
    ) -> None:
        self.directory = Directory()
        self.guests = LibvirtGuests(self.directory, port=8000)
        program = (
            f"import sys; from vmm_proxy.directory.libvirt import reporter; sys.argv = ['', '{os.getpid()}', {uri!r}, {str(sysfs)!r}]\n"
            f"reporter.KEEPALIVE_INTERVAL_SECONDS, reporter.KEEPALIVE_COUNT = {keepalive_seconds}, 1\n"
            # Whatever is seen in these tests comes from an event, not from the next look.
            "reporter.RELIST_MILLISECONDS, reporter.ALIVE_MILLISECONDS = 10 ** 6, 500\nraise SystemExit(reporter.main())"
        )
        environment = [f"{name}={value}" for name, value in module_environment(modules).items()]
        self.lists: asyncio.Queue[None] = asyncio.Queue()
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self.go_on = asyncio.Semaphore(0)
        self.follower = Follower(
            ["/usr/bin/env", *environment, sys.executable, "-P", "-c", program],
            self._take,
            sleep=self._sleep,
            patience_seconds=patience_seconds,
        )

    def _take(self, domains: Sequence[Domain]) -> None:
        self.guests.apply(domains)
        self.lists.put_nowait(None)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.put_nowait(seconds)
        await self.go_on.acquire()

    async def becomes(self, expected: dict[str, str]) -> None:
        """Wait for lists until the directory is `expected`."""
        while self.known() != expected:
            await asyncio.wait_for(self.lists.get(), 30)

    async def stops_following(self) -> str:
        """Wait for the end of a reporter; the reason."""
        await asyncio.wait_for(self.pauses.get(), 30)
        return self.follower.problem

    def known(self) -> dict[str, str]:
        return {entry.id: f"{entry.labels['name']} {entry.address}" for entry in self.directory.after()}

    def entry(self, guest_id: str) -> GuestEntry:
        return self.directory.known(guest_id)


@pytest.fixture
async def followed(daemon: LibvirtDaemon, folder: Path, modules: Path | None) -> AsyncIterator[Followed]:
    """Follows a daemon; a daemon without an answer is given up after seconds."""
    followed = Followed(daemon.read_only_uri, folder, modules, keepalive_seconds=1, patience_seconds=4)
    followed.follower.start()
    yield followed
    await followed.follower.close()


async def test_domains_that_start_and_stop_come_and_go_by_their_events(daemon: LibvirtDaemon, followed: Followed) -> None:
    await asyncio.wait_for(followed.lists.get(), 30)
    await daemon.start_domain(ONE, "one", VSOCK.format(42) + HOSTDEV.format(0x3B) + HOSTDEV.format(0x9B))
    await followed.becomes({ONE: "one vsock:42:8000"})
    assert followed.entry(ONE).gpus == ("0000:3b:00.0", "0000:9b:00.0")
    await daemon.start_domain(TWO, "two", VSOCK.format(43))
    await followed.becomes({ONE: "one vsock:42:8000", TWO: "two vsock:43:8000"})
    await daemon.stop_domain(ONE)
    await followed.becomes({TWO: "two vsock:43:8000"})
    # The same domain, started again with another CID.
    await daemon.start_domain(ONE, "one", VSOCK.format(77))
    await followed.becomes({ONE: "one vsock:77:8000", TWO: "two vsock:43:8000"})


async def test_domains_that_ran_before_are_there_and_those_without_a_vsock_are_not(
    daemon: LibvirtDaemon, folder: Path, modules: Path | None
) -> None:
    await daemon.start_domain(ONE, "one", VSOCK.format(42))
    await daemon.start_domain(TWO, "two", HOSTDEV.format(0x3B))
    followed = Followed(daemon.read_only_uri, folder, modules)
    followed.follower.start()
    try:
        await followed.becomes({ONE: "one vsock:42:8000"})
    finally:
        await followed.follower.close()


async def test_a_domain_that_its_tenant_described_with_hostile_text_is_a_guest_with_its_own_cid(
    daemon: LibvirtDaemon, followed: Followed
) -> None:
    planted = f"<x:d xmlns:x='urn:x'><devices>{VSOCK.format(9)}{HOSTDEV.format(1)}</devices></x:d>"
    metadata = f"<metadata>{planted}</metadata><description>&lt;!DOCTYPE a []&gt; &amp;x; {'y' * 100_000}</description>"
    await daemon.start_domain(ONE, "a&#10;b&lt;i&gt;&#x202e;", VSOCK.format(42), metadata)
    await daemon.start_domain(TWO, "huge", VSOCK.format(43), f"<description>{'y' * 1_100_000}</description>")
    await followed.becomes({ONE: "a\\nb<i>\\u202e vsock:42:8000"})
    while TWO not in followed.guests.found.refused:
        await asyncio.wait_for(followed.lists.get(), 30)
    assert "longer than" in followed.guests.found.refused[TWO]
    assert followed.entry(ONE).gpus == ()


async def test_a_libvirtd_that_is_killed_takes_no_guest_along_and_is_followed_again_when_it_is_back(
    daemon: LibvirtDaemon, followed: Followed
) -> None:
    await daemon.start_domain(ONE, "one", VSOCK.format(42))
    await followed.becomes({ONE: "one vsock:42:8000"})
    await daemon.end()
    assert await followed.stops_following()
    assert followed.known() == {ONE: "one vsock:42:8000"}
    followed.go_on.release()
    assert "Failed to connect" in await followed.stops_following()
    assert followed.known() == {ONE: "one vsock:42:8000"}
    await daemon.start()
    await daemon.start_domain(TWO, "two", VSOCK.format(43))
    followed.go_on.release()
    await followed.becomes({TWO: "two vsock:43:8000"})
    assert followed.follower.problem == ""


async def test_a_libvirtd_that_hangs_is_given_up_and_followed_again_when_it_goes_on(
    daemon: LibvirtDaemon, followed: Followed
) -> None:
    await daemon.start_domain(ONE, "one", VSOCK.format(42))
    await followed.becomes({ONE: "one vsock:42:8000"})
    daemon.send(signal.SIGSTOP)
    reason = await followed.stops_following()
    assert "closed" in reason or "keepalive" in reason
    followed.go_on.release()
    assert "has not answered for 4 s" in await followed.stops_following(), "connecting hangs, and only a kill ends that"
    assert followed.known() == {ONE: "one vsock:42:8000"}
    daemon.send(signal.SIGCONT)
    await daemon.stop_domain(ONE)
    followed.go_on.release()
    await followed.becomes({})


async def test_the_proxy_lists_the_guests_of_libvirt_and_leaves_no_process_when_it_is_killed(
    daemon: LibvirtDaemon, folder: Path, modules: Path | None
) -> None:
    await daemon.start_domain(ONE, "one", VSOCK.format(42))
    config = folder / "proxy.toml"
    config.write_text(f"[libvirt]\nuri = '{daemon.read_only_uri}'\nport = 9000\n")
    address = UnixAddress(str(folder / "proxy"))
    async with (
        processes.serving("--config", str(config), "--grpc", str(address), env=module_environment(modules)) as proxy,
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        fleet = fleet_pb2_grpc.FleetServiceStub(channel)

        async def listed() -> Sequence[fleet_pb2.Guest]:
            return (await fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=20)).guests

        guests = await eventually(listed)
        ((guest_id, address_shown, name),) = [(guest.id, guest.address, guest.labels["name"]) for guest in guests]
        assert (guest_id, address_shown, name) == (ONE, "vsock:42:9000", "one")
        (reporter,) = Path(f"/proc/{proxy.process.pid}/task/{proxy.process.pid}/children").read_text().split()
        pidfd = os.pidfd_open(int(reporter))
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, gone.set)
        try:
            proxy.process.kill()
            await asyncio.wait_for(gone.wait(), 10)
        finally:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)


async def test_a_proxy_whose_libvirt_is_not_there_serves_and_stops_as_ever(folder: Path, modules: Path | None) -> None:
    config = folder / "proxy.toml"
    config.write_text(
        f"[libvirt]\nuri = 'test+unix:///default?socket={folder}/nobody'\n[[guest]]\nid = 'vm1'\naddress = 'unix:{folder}/vm1'\n"
    )
    address = UnixAddress(str(folder / "proxy"))
    async with (
        processes.serving("--config", str(config), "--grpc", str(address), env=module_environment(modules)) as proxy,
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        fleet = fleet_pb2_grpc.FleetServiceStub(channel)
        (guest,) = (await fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=20)).guests
        assert guest.id == "vm1"
        status, _, _ = await proxy.stop()
        assert status == 0


async def test_a_proxy_that_is_to_follow_libvirt_without_its_module_says_what_to_install(tmp_path: Path) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text("[libvirt]\nuri = 'qemu:///system'\n")
    # As in a fresh environment: whatever the module's place, this Python does not look there.
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'libvirt' else find(name, *rest)\n"
        f"from vmm_proxy.__main__ import main; sys.argv = ['vmm-proxy', 'check-config', '--config', {str(config)!r}]; main()"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"guestscope[libvirt]" in stderr
    assert stderr.count(b"\n") == 1
