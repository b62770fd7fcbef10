"""A real server process for the tests: `python -m tests.transport.server_process ADDRESS…`.

It serves one method, /test.Door/Wait, that says "called" on stdout and answers when its stdin ends, so that a test decides how long a call
lasts. It prints its addresses once it serves. `--bug` makes its main fail, `--stuck` makes it block while it stops, with `--no-threads` no
thread starts any more, with `--late` it signals itself once more while the interpreter ends. `--tls=FOLDER`: TCP speaks TLS, with the
certificate of tests.transport.ways.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from guest_transport.process.logs import log_to_stderr

log_to_stderr()

import grpc  # noqa: E402  # after the log settings, as the doors do

from guest_transport.addresses import parse_address  # noqa: E402
from guest_transport.server.grpc_server import GrpcServer, Service, run  # noqa: E402
from tests.transport.ways import server_tls  # noqa: E402


def _bytes(value: bytes) -> bytes:
    return value


async def _wait(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    print("called", flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(0, ended.set)
    await ended.wait()
    loop.remove_reader(0)
    return request


def door() -> Service:
    def add(server: grpc.aio.Server) -> None:
        method = grpc.unary_unary_rpc_method_handler(_wait, _bytes, _bytes)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Door", {"Wait": method}),))

    return Service("test.Door", add)


class _Late:
    """Signals this process when the interpreter takes its modules apart, after it has let go of signal handlers."""

    def __del__(self, kill: Callable[[int, int], None] = os.kill, pid: int = os.getpid()) -> None:
        kill(pid, signal.SIGTERM)
        kill(pid, signal.SIGHUP)


async def _main(stop: asyncio.Event) -> None:
    options = {text for text in sys.argv[1:] if text.startswith("--")}
    if "--bug" in options:
        raise LookupError("a bug")
    folders = [text.partition("=")[2] for text in options if text.startswith("--tls=")]
    server = GrpcServer([door()], tls=server_tls(Path(folders[0])) if folders else None)
    await server.start([parse_address(text) for text in sys.argv[1:] if text not in options])
    print("serving", *server.addresses, flush=True)
    if "--no-threads" in options:
        # A stack that no machine has: every further thread is refused, as at a limit on tasks.
        threading.stack_size(1 << 46)
    await stop.wait()
    await server.stop()
    if "--stuck" in options:
        threading.Event().wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    late = _Late() if "--late" in sys.argv else None
    raise SystemExit(run(_main))
