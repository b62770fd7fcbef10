"""Server processes of a test: started, awaited until they say SERVING, stopped with SIGTERM, and judged by how they end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc

# A cold start on a busy machine; a server that is not up by then is broken.
START_SECONDS = 30.0
STOP_SECONDS = 10.0


@contextlib.contextmanager
def running(command: Sequence[str], address: str, *, contract: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The process of one of our commands that serves at `address`, built with the contract in the folder `contract` if one is given."""
    environment = dict(os.environ)
    if contract is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(contract), os.environ.get("PYTHONPATH")]))
    program = Path(sys.executable).parent / command[0]
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen([program, *command[1:]], stdout=subprocess.PIPE, stderr=stderr, env=environment)
        try:
            _await_ready(process, address, stderr.fileno())
            yield process
        finally:
            process.terminate()
            try:
                out, _ = process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise
        said = _text(stderr.fileno())
        assert process.returncode == 0, said
        assert out == b"", "stdout belongs to results"
        assert "Traceback" not in said, said


def _await_ready(process: subprocess.Popen[bytes], address: str, stderr: int) -> None:
    with grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 100)]) as channel:
        ready = grpc.channel_ready_future(channel)
        for _ in range(int(START_SECONDS / 0.2)):
            try:
                ready.result(0.2)
            except grpc.FutureTimeoutError:
                assert process.poll() is None, f"ended with {process.returncode} before it served: {_text(stderr)}"
            else:
                return
        ready.cancel()
    raise AssertionError(f"not serving after {START_SECONDS} s: {_text(stderr)}")


def _text(descriptor: int) -> str:
    return os.pread(descriptor, 1 << 20, 0).decode(errors="replace")
