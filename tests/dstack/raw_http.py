"""A caller of HTTP/1.1 that writes what it is told to and reads what comes, on a TCP or a Unix socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BOUND_SECONDS = 20


@dataclass(frozen=True)
class Reply:
    """One answer, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Its body, which has to be JSON by its own content type."""
        assert self.headers["content-type"] == "application/json", self.headers
        return json.loads(self.body)


class Connection:
    """One connection."""

    def __init__(self, held: socket.socket) -> None:
        self.socket = held
        self._file = held.makefile("rb")

    def send(self, data: bytes) -> None:
        """As it is."""
        self.socket.sendall(data)

    def reply(self) -> Reply:
        """The next answer; it has to have a length."""
        first = self._file.readline()
        assert first.startswith(b"HTTP/1.1 "), first
        headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            assert name.lower() not in headers, f"twice: {name}"
            headers[name.lower()] = value.strip()
        return Reply(int(first.split()[1]), headers, self._file.read(int(headers["content-length"])))

    def rest(self) -> bytes:
        """What comes until the end."""
        try:
            return self._file.read()
        except ConnectionResetError:
            return b""


@contextmanager
def connected(address: str) -> Iterator[Connection]:
    """To `address`: unix:/path or HOST:PORT."""
    if address.startswith("unix:"):
        held = socket.socket(socket.AF_UNIX)
        held.settimeout(BOUND_SECONDS)
        held.connect(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        held = socket.create_connection((host, int(port)), BOUND_SECONDS)
    with held:
        yield Connection(held)


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    """A request with a length, and `headers` (underscores are hyphens)."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def ask(address: str, method: str, target: str, body: bytes = b"", **headers: str) -> Reply:
    """One request on a connection of its own."""
    with connected(address) as connection:
        connection.send(request(method, target, body, **headers))
        return connection.reply()
