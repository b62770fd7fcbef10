"""Shows the product on one machine: simulated guests, the VMM proxy, and their GPUs as a client sees them.

    python demo/demo.py [--once]

Everything runs in processes of its own over Unix sockets in one temporary folder, as it would on a host; a guest with the machine's own
cards joins where a real NVIDIA driver is loaded. Whatever ends the demo (its end, Ctrl-C, SIGTERM, SIGHUP, a child that dies) ends the
children and removes the folder. It changes nothing outside that folder. Rejected: servers inside this process (a demo would then show
what no installation does).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from guest_client import AsyncProxyClient, ClientError
from guest_client.dialing import dialled
from guest_client.guestctl.output import health_view, tables
from guest_client.guestctl.output.gpu_table import GpuTable
from guest_transport.process.logs import escape

# A cold start of three Python processes on one slow core; a server that is not up by then is broken.
START_SECONDS = 30.0
# The servers promise to end 5 s after SIGTERM.
STOP_SECONDS = 6.0
# The end of a dead child's log, enough for its one line of refusal or a traceback.
SHOWN_LOG_LINES = 20
BIN = Path(sys.executable).parent
NVIDIA_MODULE = Path("/sys/module/nvidia")
# What the guests are told. Shutdown would power off the machine that the demo runs on, and everybody who reads its first page tries it.
GUEST_SETTINGS = """\
[power]
allow_shutdown = false
[http]
public_sysinfo = true
"""
# One of the eight cards is in trouble, because that is what somebody on call opens the product for: a memory row waits to be remapped
# after an error, and the power supply holds the clocks down.
RACK = Path(__file__).parents[1] / "guest_service" / "simulator" / "racks" / "h200x8.toml"
SICK_CARD = 'pci_bus_id = "00000000:9C:00.0"\n'
TROUBLE = "row_remap_pending = true\necc_uncorrected_volatile = 1\necc_uncorrected_aggregate = 1\nclocks_event_reasons = 128\n"
# A guest's page is for a browser, so it needs a port; the kernel chooses a free one.
PAGE_AT = "127.0.0.1:0"
LISTENING = re.compile(r"listening for HTTP on (\S+)")
# The page opens a moment after the gRPC door is healthy.
LOOK_AGAIN_SECONDS = 0.05


class DemoError(Exception):
    """The demo cannot go on; the message says which part failed, and how."""


class Child:
    """One server process and its log."""

    def __init__(self, name: str, address: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.address = address
        self._process = process
        self._log = log

    async def ready(self) -> None:
        """Wait until its health is SERVING; raises DemoError when it ends before, or takes too long."""
        serving = asyncio.create_task(self._serving())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait({serving, ended}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise self.ended()
            if not serving.done():
                raise DemoError(f"{self.name} does not serve at {self.address} after {START_SECONDS:.0f} s\n{self._said()}")
            try:
                await serving
            except grpc.aio.AioRpcError as error:
                raise DemoError(f"{self.name} is not healthy: {error.details()}\n{self._said()}") from error
        finally:
            for task in (serving, ended):
                task.cancel()
            await asyncio.gather(serving, ended, return_exceptions=True)

    async def _serving(self) -> None:
        async with grpc.aio.insecure_channel(self.address, options=[("grpc.max_reconnect_backoff_ms", 100)]) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            await check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=START_SECONDS + 1)

    async def page(self) -> str:
        """Where its page is, once it is there."""
        found = None
        while found is None:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            found = LISTENING.search(self._log.read_text(encoding="utf-8", errors="replace"))
        return f"http://{found[1]}/"

    async def wait(self) -> None:
        """Wait for its end."""
        await self._process.wait()

    def ended(self) -> DemoError:
        """What to say of its unexpected end."""
        return DemoError(f"{self.name} ended with exit status {self._process.returncode}\n{self._said()}")

    def _said(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"    {escape(line)}" for line in lines[-SHOWN_LOG_LINES:]) or "    (it wrote nothing)"

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL when that is not enough."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
                return


class Children:
    """The server processes of one demo, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[Child] = []

    async def guest(self, name: str, *options: str, page: bool) -> Child:
        """Start a guest agent named `name`, with a page for people or without."""
        settings = self._folder / f"{name}.toml"
        settings.write_text(GUEST_SETTINGS, encoding="utf-8")
        http = PAGE_AT if page else "off"
        return await self.start(name, "guest-service", "serve", "--config", str(settings), "--http", http, *options)

    def rack(self) -> str:
        """A file with the eight cards of the built-in rack, one of them in trouble."""
        cards = RACK.read_text(encoding="utf-8")
        if SICK_CARD not in cards:
            raise DemoError(f"{RACK} has no card at the address of the one that is to be sick")
        path = self._folder / "rack.toml"
        path.write_text(cards.replace(SICK_CARD, SICK_CARD + TROUBLE), encoding="utf-8")
        return str(path)

    async def start(self, name: str, *command: str) -> Child:
        """Start `command` to serve at a Unix socket named `name`."""
        address = str(dialled(f"unix:{self._folder / name}"))
        log = self._folder / f"{name}.log"
        # In a process group of its own, so that a Ctrl-C reaches it through us; and ended by the kernel should we be killed.
        dies_with_us = [shutil.which("setpriv"), "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        arguments = [*filter(None, dies_with_us), str(BIN / command[0]), *command[1:], "--grpc", address]
        with log.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, process_group=0
            )
        child = Child(name, address, process, log)
        self.all.append(child)
        return child

    async def ready(self) -> None:
        """Wait until all serve; raises the first failure."""
        async with asyncio.timeout(START_SECONDS + 2):
            await asyncio.gather(*(child.ready() for child in self.all))

    async def first_end(self) -> DemoError:
        """Wait until one of them ends, which none should."""
        waits = {asyncio.create_task(child.wait()): child for child in self.all}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[done.pop()].ended()

    async def stop(self) -> None:
        """End them all, the last started first asked."""
        await asyncio.gather(*(child.stop() for child in reversed(self.all)))


@contextlib.asynccontextmanager
async def children_in_a_folder() -> AsyncIterator[Children]:
    """Children that are all gone, with their folder, when the context ends."""
    with tempfile.TemporaryDirectory(prefix="guestscope-") as folder:
        children = Children(Path(folder))
        try:
            yield children
        finally:
            await children.stop()


def has_real_cards() -> bool:
    """Whether this machine has NVIDIA cards and the driver loaded."""
    if not NVIDIA_MODULE.is_dir():
        return False
    done = subprocess.run(
        [BIN / "guest-service", "inventory", "-o", "json"], capture_output=True, check=False, timeout=START_SECONDS
    )
    return done.returncode == 0 and json.loads(done.stdout)["nvidia"] > 0


async def show(proxy_address: str, vm_ids: list[str]) -> None:
    """Ask for the GPUs of every guest through the proxy, and print them."""
    async with AsyncProxyClient(proxy_address) as proxy:
        answers = await asyncio.gather(*(proxy.gpu_info(vm_id) for vm_id in vm_ids))
    outcomes = dict(zip(vm_ids, answers, strict=True))
    sys.stdout.write(tables.render(GpuTable(outcomes)))
    found = health_view.lines(health_view.judge(vm_id, answer) for vm_id, answer in outcomes.items())
    sys.stdout.write("\n" + "".join(tables.render(line) for line in found))


def explain(guests: list[Child], pages: list[str], proxy: Child) -> None:
    """Print where everything listens and what to try."""
    guestctl = BIN / "guestctl"
    lines = [
        "",
        *(f"guest {guest.name:14} {guest.address}  page {page}" for guest, page in zip(guests, pages, strict=False)),
        f"proxy {'':14} {proxy.address}  page {pages[-1]}",
        "",
        "Try, in another terminal:",
        f"  export GUESTCTL_PROXY={proxy.address}",
        f"  {guestctl} list",
        f"  {guestctl} gpu {guests[0].name}",
        f"  {guestctl} health",
        f"  {guestctl} top",
        f"  {guestctl} gpu --all -o json",
        f"  {guestctl} -o json sys {guests[0].name}",
        f"  {guestctl} --guest {guests[0].address} info",
        "",
        "Ctrl-C ends it.",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


async def demo(*, once: bool) -> None:
    """Run it; raises DemoError or ClientError."""
    async with children_in_a_folder() as children:
        guests = [
            await children.guest("vm-h200x8", "--simulate", children.rack(), page=not once),
            await children.guest("vm-none", "--simulate", "none", page=not once),
        ]
        if await asyncio.to_thread(has_real_cards):
            guests.append(await children.guest("this-machine", page=not once))
        known = [argument for guest in guests for argument in ("--guest", f"{guest.name}={guest.address}")]
        proxy = await children.start("proxy", "vmm-proxy", "serve", "--http", "off" if once else PAGE_AT, *known)
        await children.ready()
        await show(proxy.address, [guest.name for guest in guests])
        if not once:
            async with asyncio.timeout(START_SECONDS):
                pages = [await child.page() for child in [*guests, proxy]]
            explain(guests, pages, proxy)
            raise await children.first_end()


async def until_signalled(*, once: bool) -> int:
    """Run the demo until it ends or a signal ends it; returns the exit status."""
    running = asyncio.create_task(demo(once=once))
    loop = asyncio.get_running_loop()
    signalled = False

    def end() -> None:
        nonlocal signalled
        if not signalled:  # a second Ctrl-C must not interrupt the ending of the children
            signalled = True
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    try:
        await running
    except asyncio.CancelledError:
        return 0
    except (DemoError, ClientError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    return 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Simulated guests behind a VMM proxy, shown as a client sees them.")
    parser.add_argument("--once", action="store_true", help="show them once and end, leaving nothing behind")
    return asyncio.run(until_signalled(once=parser.parse_args().once))


if __name__ == "__main__":
    raise SystemExit(main())
