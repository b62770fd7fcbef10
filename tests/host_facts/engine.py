"""A container engine that behaves: Docker's HTTP API on a Unix socket, with the answers and the faults that a test chooses.

Shapes as Docker 27 and Podman 4.3 gave them in November 2026.
"""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

CONTAINER = {
    "Id": "4f66ad9a0b2e" + "0" * 52,
    "Names": ["/web"],
    "Image": "docker.io/library/nginx:1",
    "ImageID": "sha256:12",
    "Created": 1700000000,
    "State": "running",
    "Status": "Up 3 hours",
}


def frame(text: bytes, stream: int = 1) -> bytes:
    """One frame of a log without a terminal, as the engine multiplexes stdout and stderr."""
    return struct.pack(">BxxxL", stream, len(text)) + text


class Engine:
    """What the engine says; change it between calls. `hold` makes every answer wait."""

    def __init__(self) -> None:
        self.version: object = "1.43"
        self.list_status = 200
        self.list_body: bytes = json.dumps([CONTAINER]).encode()
        self.logs: dict[str, list[bytes]] = {"web": [b"one\n", b"two\n"]}
        self.terminal = False
        self.follow_more = threading.Event()
        self.queries: list[dict[str, list[str]]] = []
        self.hold: threading.Event | None = None
        self.streams_ended = threading.Semaphore(0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- Any and the name are the base class's
        return

    def do_GET(self) -> None:
        engine: Engine = self.server.engine  # type: ignore[attr-defined] # set where the server is made
        url = urlsplit(self.path)
        path = url.path.split("/")
        if engine.hold is not None:
            engine.hold.wait()
        if url.path == "/_ping":
            self._answer(200, b"OK", {} if engine.version is None else {"Api-Version": str(engine.version)})
        elif path[2:] == ["containers", "json"]:
            engine.queries.append(parse_qs(url.query))
            self._answer(engine.list_status, engine.list_body)
        elif path[3] not in engine.logs:
            self._answer(404, json.dumps({"message": f"No such container: {path[3]}"}).encode())
        elif path[4] == "json":
            self._answer(200, json.dumps({"Config": {"Tty": engine.terminal}}).encode())
        else:
            engine.queries.append(parse_qs(url.query))
            self._stream(engine, engine.logs[path[3]], follow=parse_qs(url.query)["follow"] == ["1"])

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, engine: Engine, lines: list[bytes], *, follow: bool) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for line in lines:
                self._chunk(line if engine.terminal else frame(line))
            while follow:
                engine.follow_more.wait()
                self._chunk(frame(b"more\n"))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            engine.streams_ended.release()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False


@contextmanager
def running_engine(socket: Path) -> Iterator[Engine]:
    """An engine on `socket`."""
    engine = Engine()
    with _Server(str(socket), _Handler) as server:
        server.engine = engine  # type: ignore[attr-defined] # read by the handler
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            engine.follow_more.set()
            if engine.hold is not None:
                engine.hold.set()
            server.shutdown()
            thread.join()
