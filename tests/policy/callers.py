"""Callers for the tests: with a token, and as another user of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from guest_transport.relay.dial import relayed_target
from tests.other_users import as_user, python_of_anybody
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.roles import Grant, Role
from vmm_proxy.policy.tokens import Token, token_sha256

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv (util-linux): connects as another user"
)
# Connects and hands the connection over: who it is for the kernel was settled at connect(2).
_CONNECTING = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=0), [b"x"], [connection.fileno()])
"""


def rules(**changed: object) -> AccessRules:
    """The rules of an empty configuration, with some of them changed."""
    return replace(AccessRules(own_uid=os.geteuid(), own_gid=os.getegid()), **changed)  # type: ignore[arg-type] # a test's shorthand


def secret(name: str) -> str:
    """A token that is long enough; each name has its own."""
    return f"{name}-".ljust(40, "x")


def token(name: str, role: Role, labels: Mapping[str, str] | None = None) -> Token:
    return Token(name, token_sha256(secret(name)), Grant(role, labels or {}))


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret(name)}"),)


async def connected_as(path: str, uid: int, gid: int, groups: Sequence[int]) -> socket.socket:
    """A connection to the Unix socket `path` that was made by another user; raises ConnectionRefusedError where it may not."""
    here, there = socket.socketpair()
    with here:
        with there:
            process = await asyncio.create_subprocess_exec(
                *as_user(uid, gid, groups),
                await asyncio.to_thread(python_of_anybody),
                *("-I", "-c", _CONNECTING, path),
                stdin=there.fileno(),
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
            )
        _, complaint = await asyncio.wait_for(process.communicate(), 20)
        if process.returncode:
            raise ConnectionRefusedError(complaint.decode())
        # It is here already.
        here.setblocking(False)
        _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
    connection = socket.socket(fileno=descriptors[0])
    connection.setblocking(False)
    return connection


@contextlib.asynccontextmanager
async def channel_as(path: Path, uid: int, gid: int, groups: Sequence[int] = ()) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the server at `path` as another user has it; raises ConnectionRefusedError where that user may not connect."""
    address = UnixAddress(str(path))
    connection = await connected_as(str(path), uid, gid, groups)

    async def made() -> socket.socket:
        return connection

    async with (
        relayed_target(address, made) as target,
        grpc.aio.insecure_channel(target.grpc_target, options=channel_options(address)) as channel,
    ):
        yield channel
