"""The relay's byte stream: whatever two ends do, in whatever pieces, bytes out are bytes in.

Input: one step a line, `END VERB [COUNT]`, with END near or far, over real TCP sockets, where a reset is a reset:

    near send 70000    near half    near close    near reset    near read 5    near all    wait

What is no step is passed over. After the last step both ends say that they are done and read to the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

from guest_transport.relay.relay import pump
from tests.eventually import turns
from tests.fuzz.door import Door

PATIENCE_SECONDS = 20
STEPS_LIMIT = 40
SEND_LIMIT_BYTES = 300_000
_STEP = re.compile(r"(near|far) (send|read|half|close|reset|all)(?: ([0-9]{1,6}))?|wait")


@dataclass
class _End:
    """One outer end. `rough`: it broke off, or was written to after it had closed, so that bytes on their way to or from it may be lost."""

    connection: socket.socket
    sent: bytearray = field(default_factory=bytearray)
    got: bytearray = field(default_factory=bytearray)
    half: bool = False
    closed: bool = False
    rough: bool = False


def check(data: bytes) -> None:
    """Each end gets a beginning of what the other sent, all of it unless an end broke off; both pump and sockets end."""
    steps = [step for line in data.decode("ascii", "replace").splitlines() if (step := _STEP.fullmatch(line.strip()))]
    asyncio.run(asyncio.wait_for(_play(steps[:STEPS_LIMIT]), 3 * PATIENCE_SECONDS))


async def _play(steps: list[re.Match[str]]) -> None:
    with contextlib.ExitStack() as sockets:
        near, near_inside = (sockets.enter_context(each) for each in _pair())
        far, far_inside = (sockets.enter_context(each) for each in _pair())
        ends = {"near": _End(near), "far": _End(far)}
        moving = asyncio.create_task(pump(near_inside, far_inside))
        for step in steps:
            if step[0] == "wait":
                await _breathe()
            else:
                await _step(ends[step[1]], ends["far" if step[1] == "near" else "near"], step[2], int(step[3] or 1))
        await _finish(ends["near"], ends["far"])
        await asyncio.wait_for(moving, PATIENCE_SECONDS)
        assert near_inside.fileno() == far_inside.fileno() == -1, "the relay left a socket open"
    _compare(ends["near"], ends["far"], "near to far")
    _compare(ends["far"], ends["near"], "far to near")


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        outer = socket.create_connection(listener.getsockname())
        inner, _ = listener.accept()
    outer.setblocking(False)
    inner.setblocking(False)
    return outer, inner


async def _breathe() -> None:
    """Let the pump move what it will."""
    await turns(5)


async def _step(end: _End, other: _End, verb: str, count: int) -> None:
    if end.closed:
        return
    match verb:
        case "send" if not end.half:
            # To an end that is closed, bytes are answered with a reset, which overtakes what that end had sent.
            end.rough = other.rough = other.rough or other.closed or end.rough
            await _send(end, count)
        case "half" if not end.half:
            end.half = True
            _tolerate(end, lambda: end.connection.shutdown(socket.SHUT_WR))
        case "read":
            await _read(end, count, once=True)
        case "close":
            _close(end, other)
        case "reset":
            end.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.rough = other.rough = True
            _close(end, other)
        case "all" if other.half or other.closed:
            await _read(end, SEND_LIMIT_BYTES * STEPS_LIMIT, once=False)


def _close(end: _End, other: _End) -> None:
    if len(end.got) < len(other.sent):
        # What it has not read makes its close a reset.
        end.rough = other.rough = True
    end.closed = True
    end.connection.close()


async def _send(end: _End, count: int) -> None:
    """As much of `count` bytes as fits in now; the pattern depends on the place, so that a byte moved or doubled shows."""
    count = min(count, SEND_LIMIT_BYTES)
    at = len(end.sent)
    data = b"".join(hashlib.sha256(b"%d" % block).digest() for block in range(at // 32, (at + count) // 32 + 1))
    data = data[at % 32 :][:count]
    try:
        end.sent += data[: end.connection.send(data)]
    except BlockingIOError:
        await _breathe()
    except ConnectionError:
        assert end.rough, "an end was cut off that had done nothing"


async def _read(end: _End, count: int, *, once: bool) -> None:
    loop = asyncio.get_running_loop()
    while count > 0:
        try:
            piece = (
                end.connection.recv(count)
                if once
                else await asyncio.wait_for(loop.sock_recv(end.connection, 65536), PATIENCE_SECONDS)
            )
        except BlockingIOError:
            await _breathe()
            return
        except ConnectionError:
            assert end.rough, "an end was cut off that had done nothing"
            return
        if not piece:
            return
        end.got += piece
        count -= len(piece)
        if once:
            return


def _tolerate(end: _End, act: object) -> None:
    assert callable(act)
    try:
        act()
    except OSError:
        assert end.rough, "an end was cut off that had done nothing"


async def _finish(*ends: _End) -> None:
    """Both have said all and read to the end, then close."""
    for end in ends:
        if not (end.half or end.closed):
            end.half = True
            _tolerate(end, lambda end=end: end.connection.shutdown(socket.SHUT_WR))
    await asyncio.gather(*(_read(end, SEND_LIMIT_BYTES * STEPS_LIMIT * 2, once=False) for end in ends if not end.closed))
    for end in ends:
        if not end.closed:
            end.closed = True
            end.connection.close()


def _compare(sender: _End, receiver: _End, way: str) -> None:
    assert sender.sent.startswith(receiver.got), f"{way}: other bytes came out than went in"
    if not (sender.rough or receiver.rough):
        assert len(receiver.got) == len(sender.sent), f"{way}: {len(receiver.got)} bytes of {len(sender.sent)} came out"


_STEPS = st.one_of(
    st.builds(
        "{} send {}".format,
        st.sampled_from(["near", "far"]),
        st.sampled_from([1, 31, 4096, 65536, 65537, 300_000]) | st.integers(1, 999),
    ),
    st.builds("{} read {}".format, st.sampled_from(["near", "far"]), st.sampled_from([1, 4096, 999_999])),
    st.builds("{} {}".format, st.sampled_from(["near", "far"]), st.sampled_from(["half", "close", "reset", "all"])),
    st.just("wait"),
)

RELAY = Door(
    "relay",
    check,
    st.lists(_STEPS, max_size=14).map(lambda steps: "\n".join(steps).encode()),
    words=(b"\nnear send 300000", b"\nfar half", b"\nnear close", b"\nfar reset", b"\nwait", b"\nnear all", b"\nfar read 1"),
    examples=25,
)
