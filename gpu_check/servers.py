"""Real agents and a real proxy as processes of this run, on Unix sockets in a temporary folder; each is ended by its pid."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_check.verdict import CheckFailedError

START_SECONDS = 20.0
STOP_SECONDS = 10.0
PAGE_SECONDS = 5.0
POLL_SECONDS = 0.002


class Server:
    """One process, its gRPC address and, for an agent, its page."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
        self.process = process
        self.grpc = f"unix:{folder}/grpc"
        self._page = folder / "page"
        self._log = log

    def page(self, path: str) -> str:
        """The text at `path`; raises CheckFailedError for another status than 200."""
        connection = _UnixConnection(self._page)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise CheckFailedError(f"{path} answered {answer.status}: {text[:80]}")
        return text

    def children(self) -> list[int]:
        """Process ids of its children."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def last_lines(self) -> str:
        """The end of its log."""
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-3:])


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PAGE_SECONDS)
        self._path = path

    def connect(self) -> None:
        """As http.client wants it, to a Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def agent(folder: Path, *options: str, config: str = "") -> Iterator[Server]:
    """`guest-service serve` with everything public, in `folder`, until the context ends."""
    folder.mkdir(parents=True)
    file = folder / "guest.toml"
    file.write_text(f'{config}\n[http]\npublic_sysinfo = true\n[containers]\nsocket = "off"\n')
    doors = ("--grpc", f"unix:{folder}/grpc", "--http", f"unix:{folder}/page")
    with _running(folder, "listening for HTTP on", "guest_service", "serve", "--config", str(file), *doors, *options) as server:
        yield server


@contextmanager
def proxy(folder: Path, guests: dict[str, str]) -> Iterator[Server]:
    """`vmm-proxy serve` for `guests`, id to address."""
    folder.mkdir(parents=True)
    flags = [f"--guest={name}={address}" for name, address in guests.items()]
    with _running(
        folder, "listening on", "vmm_proxy", "serve", "--http", "off", "--grpc", f"unix:{folder}/grpc", *flags
    ) as server:
        yield server


@contextmanager
def _running(folder: Path, ready: str, module: str, *arguments: str) -> Iterator[Server]:
    log = folder / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=environment
        )
    server = Server(process, folder, log)
    try:
        wait_for(
            lambda: process.poll() is not None or ready in log.read_text(errors="replace"), START_SECONDS, f"{module} to start"
        )
        if process.poll() is not None:
            raise CheckFailedError(f"{module} ended with {process.returncode}: {server.last_lines()}")
        yield server
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL; reaped in either case."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return when `condition` holds; raises CheckFailedError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise CheckFailedError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(POLL_SECONDS)
