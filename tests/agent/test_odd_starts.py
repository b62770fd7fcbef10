"""Both servers where a supervisor or the machine left something odd: blocked signals, hardly a descriptor, no /dev/null."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVERS = {
    "guest-service": ("guest_service", "serve", "--simulate", "h200"),
    "vmm-proxy": ("vmm_proxy", "serve"),
}
PATIENCE_SECONDS = 30


def command(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", *SERVERS[name], "--grpc", f"unix:{folder}/s", "--http", "off"]


def block_all() -> str:
    """A program that blocks the signals that end a server, and then becomes what its arguments say."""
    return "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {1, 2, 14, 15, 17}); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_was_started_with_its_signals_blocked_ends_on_them(
    name: str, number: signal.Signals, short_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", block_all(), *command(name, short_path)], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            while "listening on" not in server.stderr.readline():
                assert server.poll() is None
            server.send_signal(number)
            assert server.wait(PATIENCE_SECONDS) == 0
        finally:
            server.kill()


@pytest.mark.parametrize("name", SERVERS)
def test_a_start_without_enough_descriptors_is_one_line_that_names_the_limit(name: str, short_path: Path) -> None:
    done = subprocess.run(
        ["prlimit", "--nofile=11:11", *command(name, short_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 1
    assert "LimitNOFILE=" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", SERVERS)
def test_a_machine_without_dev_null_is_one_line(name: str, short_path: Path) -> None:
    apart = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"', "sh"]
    try:
        subprocess.run([*apart, "true"], check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"missing: the right to a /dev of its own ({error})")
    done = subprocess.run(
        [*apart, *command(name, short_path)], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stderr) == (1, f"{name}: /dev/null: No such file or directory; it must be there\n")
