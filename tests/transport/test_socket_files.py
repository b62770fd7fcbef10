"""The claim on a socket's path: who gets it, who is left alone, and how wide the door ever is."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from guest_transport.errors import ListenError
from guest_transport.sockets.socket_files import SocketFile


def _listen(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener


def _refusal(path: Path) -> str:
    with pytest.raises(ListenError) as refused:
        SocketFile.claim(str(path))
    assert str(refused.value).startswith(f"unix:{path}: cannot listen: ")
    return str(refused.value)


def test_a_stale_socket_of_a_server_without_a_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    _listen(tmp_path / "s").close()
    SocketFile.claim(str(tmp_path / "s")).release()


def test_a_live_socket_of_a_server_without_a_lock_file_is_left_alone(tmp_path: Path) -> None:
    with _listen(tmp_path / "s") as listener:
        assert "another program" in _refusal(tmp_path / "s")
        assert (tmp_path / "s").is_socket()
        listener.settimeout(5)
        listener.accept()[0].close()
    assert not (tmp_path / "s.lock").exists()


def test_a_live_socket_whose_queue_is_full_is_left_alone(tmp_path: Path) -> None:
    with _listen(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as first:
        listener.listen(0)
        first.connect(str(tmp_path / "s"))
        assert "another program" in _refusal(tmp_path / "s")


def test_a_socket_of_another_type_is_left_alone(tmp_path: Path) -> None:
    with _listen(tmp_path / "s", socket.SOCK_DGRAM):
        assert "another program" in _refusal(tmp_path / "s")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_refused_and_kept(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case "link":
            _listen(tmp_path / "elsewhere").close()
            path.symlink_to(tmp_path / "elsewhere")
    before = os.lstat(path)
    assert "no socket" in _refusal(path)
    assert os.path.samestat(before, os.lstat(path))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing/s", "there is no folder {folder}/missing; make it, or "),
        ("file/s", "Not a directory"),
        # Nobody may make a file there, root neither.
        ("/sys/s", "start as a user who may write in /sys, or "),
    ],
)
def test_a_folder_that_cannot_hold_a_socket_is_named(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "file").touch()
    assert reason.format(folder=tmp_path) in _refusal(tmp_path / path)


def test_a_planted_lock_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "s.lock").symlink_to(tmp_path / "victim")
    _refusal(tmp_path / "s")
    assert not (tmp_path / "victim").exists()


def test_release_leaves_a_socket_alone_that_is_not_the_one_bound(tmp_path: Path) -> None:
    path = tmp_path / "s"
    held = SocketFile.claim(str(path))
    with held.binding(0o600):
        _listen(path).close()
    # A second name keeps the first inode, so that its number is not used again.
    path.rename(tmp_path / "moved")
    with _listen(path):
        held.release()
        assert path.is_socket()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_socket_is_never_wider_than_its_mode_from_the_first_moment(tmp_path: Path, mode: int) -> None:
    before = os.umask(0)
    try:
        held = SocketFile.claim(str(tmp_path / "s"))
        with held.binding(mode), _listen(tmp_path / "s"):
            assert os.stat(tmp_path / "s").st_mode & 0o777 & ~mode == 0
        assert os.stat(tmp_path / "s").st_mode & 0o777 == mode
        assert os.umask(0) == 0
        held.release()
    finally:
        os.umask(before)


def test_a_path_is_never_held_twice_however_holders_come_and_go(tmp_path: Path) -> None:
    path, turns, guard, overlaps = str(tmp_path / "s"), [0], threading.Lock(), []

    def hold_and_let_go() -> None:
        while turns[0] < 400:
            try:
                held = SocketFile.claim(path)
            except ListenError:
                continue
            if not guard.acquire(blocking=False):
                overlaps.append(turns[0])
                return
            turns[0] += 1
            # Long enough for the others to try.
            for _ in range(20):
                os.stat(tmp_path)
            guard.release()
            held.release()

    threads = [threading.Thread(target=hold_and_let_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    assert list(tmp_path.iterdir()) == []
