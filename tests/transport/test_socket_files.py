"""The claim on a socket's path: who gets it, who is left alone, and how wide the door ever is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

import pytest
from starlette.responses import PlainTextResponse

from guest_transport.addresses import UNIX_PATH_BYTES, UnixAddress
from guest_transport.errors import ListenError
from guest_transport.http.server import PageServer
from guest_transport.server.grpc_server import GrpcServer
from guest_transport.sockets import unix
from guest_transport.sockets.socket_files import SocketFile
from tests.umask import umask


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


T = TypeVar("T")


def _bind(held: SocketFile, mode: int, bind: Callable[[Path], T]) -> T:
    async def binding() -> T:
        async with held.binding(mode) as place:
            return await asyncio.to_thread(bind, Path(place))

    return asyncio.run(binding())


def test_release_leaves_a_socket_alone_that_is_not_the_one_bound(tmp_path: Path) -> None:
    path = tmp_path / "s"
    held = SocketFile.claim(str(path))
    _bind(held, 0o600, _listen).close()
    # A second name keeps the first inode, so that its number is not used again.
    path.rename(tmp_path / "moved")
    with _listen(path):
        held.release()
        assert path.is_socket()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_socket_is_never_wider_than_its_mode_from_the_first_moment(tmp_path: Path, mode: int, mask: int) -> None:
    path = tmp_path / "s"

    def bind(place: Path) -> socket.socket:
        # gRPC binds with whatever the umask leaves; until the socket has its mode nobody but its user comes near.
        listener = _listen(place)
        assert place.parent.stat().st_mode & 0o777 == 0o700
        assert not path.exists()
        return listener

    with umask(mask):
        held = SocketFile.claim(str(path))
        with _bind(held, mode, bind):
            assert path.stat().st_mode & 0o777 == mode
        held.release()
    assert list(tmp_path.iterdir()) == []


def test_a_socket_of_our_own_is_its_users_alone_until_it_has_its_mode(tmp_path: Path) -> None:
    with umask(0), unix.listen(str(tmp_path / "s")):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_path_as_long_as_a_socket_may_have_is_listened_on() -> None:
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        path = Path(folder, "s" * (UNIX_PATH_BYTES - len(folder) - 1))
        held = SocketFile.claim(str(path))
        with _bind(held, 0o660, _listen), socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))
            assert path.stat().st_mode & 0o777 == 0o660
        held.release()
        assert list(Path(folder).iterdir()) == []


def test_what_a_killed_server_left_half_made_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "s.new").mkdir(0o700)
    _listen(tmp_path / "s.new" / "s").close()
    held = SocketFile.claim(str(tmp_path / "s"))
    _bind(held, 0o660, _listen).close()
    held.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["open to others", "a link"])
def test_a_folder_that_somebody_else_may_write_in_is_not_bound_in(tmp_path: Path, kind: str) -> None:
    theirs = tmp_path / ("s.new" if kind == "open to others" else "theirs")
    theirs.mkdir()
    theirs.chmod(0o777)
    if kind == "a link":
        (tmp_path / "s.new").symlink_to(theirs)
    held = SocketFile.claim(str(tmp_path / "s"))
    with pytest.raises(ListenError, match=r"s\.new: "):
        _bind(held, 0o660, _listen)
    held.release()
    assert list(theirs.iterdir()) == []
    assert not (tmp_path / "s").exists()


def test_a_socket_that_another_program_bound_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    held = SocketFile.claim(str(tmp_path / "s"))
    with contextlib.ExitStack() as listeners:

        def bind(place: Path) -> None:
            listeners.enter_context(_listen(place))
            listeners.enter_context(_listen(tmp_path / "s"))

        with pytest.raises(ListenError, match="another program took it just now"):
            _bind(held, 0o660, bind)
        held.release()
        assert (tmp_path / "s").is_socket()


async def _relayed(path: str) -> Callable[[], Awaitable[None]]:
    server = GrpcServer([], identify_unix=True)
    await server.start([UnixAddress(path)])
    return server.stop


async def _grpc(path: str) -> Callable[[], Awaitable[None]]:
    server = GrpcServer([])
    await server.start([UnixAddress(path)])
    return server.stop


async def _pages(path: str) -> Callable[[], Awaitable[None]]:
    server = PageServer()
    await server.start(PlainTextResponse("ok"), UnixAddress(path))
    return server.stop


STARTS = 15
Start: TypeAlias = Callable[[str], Awaitable[Callable[[], Awaitable[None]]]]
every_server = pytest.mark.parametrize("start", [_relayed, _grpc, _pages])


def _start_and_stop(start: Start, path: Path) -> None:
    async def start_and_stop() -> None:
        with contextlib.suppress(ListenError):
            await (await start(str(path)))()

    asyncio.run(start_and_stop())


@every_server
def test_files_of_other_threads_keep_their_mode_while_sockets_are_bound(tmp_path: Path, start: Start) -> None:
    over, modes = threading.Event(), set[int]()

    def make_files() -> None:
        made = tmp_path / "file"
        while not over.is_set():
            made.touch(0o666)
            modes.add(made.stat().st_mode & 0o777)
            made.unlink()

    maker = threading.Thread(target=make_files)
    with umask(0o022):
        maker.start()
        try:
            for _ in range(STARTS):
                _start_and_stop(start, tmp_path / "s")
        finally:
            over.set()
            maker.join()
    assert modes == {0o644}


def test_a_link_that_is_put_where_a_socket_is_made_is_not_followed(tmp_path: Path) -> None:
    theirs, victim, path = tmp_path / "theirs", tmp_path / "victim", tmp_path / "open" / "s"
    theirs.mkdir()
    path.parent.mkdir()
    victim.touch(0o600)
    (theirs / "s").symlink_to(victim)

    def bind(place: Path) -> socket.socket:
        listener = _listen(place)
        place.parent.rename(tmp_path / "taken")
        place.parent.symlink_to(theirs)
        return listener

    held = SocketFile.claim(str(path))
    with _bind(held, 0o660, bind), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        assert path.stat().st_mode & 0o777 == 0o660
        assert victim.stat().st_mode & 0o777 == 0o600
        assert victim.exists()
    held.release()


def test_a_link_that_is_put_at_the_path_while_a_socket_is_made_is_neither_followed_nor_replaced(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "s"
    victim.touch(0o600)

    def bind(place: Path) -> None:
        _listen(place).close()
        path.symlink_to(victim)

    held = SocketFile.claim(str(path))
    with pytest.raises(ListenError, match="another program took it just now"):
        _bind(held, 0o660, bind)
    held.release()
    assert victim.stat().st_mode & 0o777 == 0o600
    assert path.is_symlink()


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
