"""Folders of private sockets: held as long as their process lives, removed by the next server when it was killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guest_transport.sockets.private_folder import PREFIX, PrivateFolder, remove_abandoned_folders

HOLDER = """
import socket, sys
from guest_transport.sockets.private_folder import PrivateFolder
folder = PrivateFolder()
listener = socket.socket(socket.AF_UNIX)
listener.bind(folder.file("s"))
print(folder.file(""), flush=True)
sys.stdin.read()
"""

# With no byte that may be written to a file, no folder for temporary files counts as usable: as on a read-only machine or a full disk.
PROXY = """
import resource, signal, sys
from vmm_proxy.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(main())
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pf") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def bind(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)


def test_the_folder_of_a_process_that_was_killed_is_removed_and_not_before(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    ) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        assert folder.parent == place
        remove_abandoned_folders()
        assert (folder / "s").is_socket()
        # A machine that was paused is not dead.
        holder.send_signal(signal.SIGSTOP)
        remove_abandoned_folders()
        assert (folder / "s").is_socket()
        holder.kill()
        holder.wait()
    remove_abandoned_folders()
    assert list(place.iterdir()) == []


def test_a_folder_in_use_by_this_process_stays_and_is_gone_once_it_is_closed(place: Path) -> None:
    folder = PrivateFolder()
    bind(folder.file("s"))
    assert place.joinpath(folder.file("s")).stat().st_mode & 0o777
    remove_abandoned_folders()
    assert Path(folder.file("s")).is_socket()
    folder.close()
    assert list(place.iterdir()) == []


def test_a_folder_that_is_closed_twice_closes_no_descriptor_of_somebody_else(place: Path) -> None:
    folder = PrivateFolder()
    folder.close()
    with open(os.devnull) as next_with_the_same_number:
        folder.close()
        os.fstat(next_with_the_same_number.fileno())
    assert list(place.iterdir()) == []


def test_nothing_but_sockets_is_ever_removed(place: Path) -> None:
    kept = place / f"{PREFIX}x"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    (place / f"{PREFIX}file").write_text("no folder")
    (place / "elsewhere").mkdir()
    bind(str(place / "elsewhere" / "s"))
    (place / f"{PREFIX}link").symlink_to("elsewhere")
    (place / "other").mkdir()
    remove_abandoned_folders()
    assert (kept / "notes.txt").read_text() == "mine"
    assert (place / "elsewhere" / "s").is_socket()
    assert {path.name for path in place.iterdir()} == {kept.name, f"{PREFIX}file", f"{PREFIX}link", "elsewhere", "other"}


def test_a_folder_being_made_is_not_taken_away_by_a_server_that_starts_in_that_moment(place: Path) -> None:
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            remove_abandoned_folders()

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        folders = [PrivateFolder() for _ in range(200)]
        for folder in folders:
            bind(folder.file("s"))
    finally:
        done.set()
        for sweeper in sweepers:
            sweeper.join()
    assert all(Path(folder.file("s")).is_socket() for folder in folders)
    for folder in folders:
        folder.close()
    assert list(place.iterdir()) == []


def test_a_place_that_is_not_there_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    remove_abandoned_folders()


# Coverage cannot write its data there either, and says so on a line of its own.
@pytest.mark.cost
def test_a_proxy_that_can_write_no_temporary_file_says_where_it_tried_and_what_to_set(tmp_path: Path) -> None:
    arguments = ("serve", "--http", "off", "--grpc", f"unix:{tmp_path}/s")
    done = subprocess.run([sys.executable, "-c", PROXY, *arguments], check=False, capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "cannot make a private folder for sockets: No usable temporary directory found in [" in done.stderr
    assert "set TMPDIR" in done.stderr
