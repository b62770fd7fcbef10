"""Folders of private sockets: held by their process, and removed when it was killed."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_transport import private_folder
from guest_transport.private_folder import PrivateFolder
from tests.proxy import processes

HOLDS = """
import signal
from guest_transport import unix_sockets
from guest_transport.private_folder import PrivateFolder
folder = PrivateFolder()
unix_sockets.listen(folder.file("s"))
print(folder.file("s"), flush=True)
signal.pause()
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place for temporary files, for this test and what it starts."""
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def holder() -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder, and its socket."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(20)
    assert process.stdout is not None
    process.stdout.close()


def test_what_a_killed_process_left_is_removed_and_what_a_running_one_holds_is_not(place: Path) -> None:
    gone, left = holder()
    runs, held = holder()
    own = PrivateFolder()
    killed(gone)
    assert left.is_socket()
    assert private_folder.sweep() == 1
    assert not left.parent.exists()
    assert held.is_socket()
    assert Path(own.file("s")).parent.is_dir()
    assert private_folder.sweep() == 0
    killed(runs)
    own.close()
    assert private_folder.sweep() == 1
    assert list(place.iterdir()) == []


def test_nothing_else_is_touched(place: Path) -> None:
    kept = [
        place / name
        for name in (
            "guestscope-other",
            "guestscope-run-file",
            "guestscope-run-link",
            "guestscope-run-open",
            "guestscope-run-full",
        )
    ]
    kept[0].mkdir(mode=0o700)
    kept[1].write_text("x")
    kept[2].symlink_to(kept[0])
    kept[3].mkdir(mode=0o755)
    (kept[4] / "folder").mkdir(parents=True)
    kept[4].chmod(0o700)
    assert private_folder.sweep() == 0
    assert sorted(place.iterdir()) == sorted(kept)
    assert (kept[4] / "folder").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a folder to another user")
def test_another_users_folder_is_left_alone(place: Path) -> None:
    folder = place / "guestscope-run-x"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    assert private_folder.sweep() == 0
    assert folder.is_dir()


def test_a_folder_that_is_made_during_sweeps_stays(place: Path) -> None:
    over = threading.Event()

    def sweep() -> None:
        while not over.is_set():
            private_folder.sweep()

    sweeping = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in sweeping:
        thread.start()
    try:
        folders = [PrivateFolder() for _ in range(200)]
    finally:
        over.set()
        for thread in sweeping:
            thread.join()
    for folder in folders:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(folder.file("s"))
        assert stat.S_IMODE(Path(folder.file("s")).parent.stat().st_mode) == 0o700
        folder.close()
    assert list(place.iterdir()) == []


async def test_a_proxy_that_was_killed_leaves_nothing_behind_the_next_one(place: Path) -> None:
    arguments = ("--grpc", f"unix:{place}/p.sock", "--guest", f"vm1=hvsock:{place}/none:1")
    async with processes.serving(*arguments) as proxy:
        await proxy.stop(signal.SIGKILL)
    (left,) = place.glob("guestscope-run-*")
    async with processes.serving(*arguments) as proxy:
        status, _, _ = await proxy.stop()
    assert status == 0
    assert not left.exists()
    assert not list(place.glob("guestscope-*"))
