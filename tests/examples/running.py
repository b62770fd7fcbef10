"""Programs of an example as processes, and a network of their own for addresses that this machine does not have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.agent.agent import Agent


@contextmanager
def started(*command: str, ready: str = "listening on", prefix: Sequence[str] = ()) -> Iterator[Agent]:
    """A Python module of the product with its arguments, once its log has `ready`; ended at the end."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = Agent(process)
    try:
        running.log_line(ready, within_seconds=40)
        yield running
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        running.reader.join(20)
        assert process.stderr is not None
        process.stderr.close()


@contextmanager
def network(*addresses: str) -> Iterator[tuple[str, ...]]:
    """What to put before a command so that it runs where this machine has `addresses`; skips where a network cannot be had."""
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            pytest.skip(f"missing: {tool} (Debian: iproute2, util-linux)")
    setting_up = " && ".join(["ip link set lo up", *(f"ip addr add {address} dev lo" for address in addresses), "echo ready"])
    # The shell ends with its input, and the network with the last process in it.
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f"{setting_up} && read forever || exit 0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no network namespace: {holder.stderr.read().strip()} (needs root)")
        yield ("nsenter", f"--net=/proc/{holder.pid}/ns/net", "--")
    finally:
        holder.stdin.close()
        holder.wait(20)
        holder.stdout.close()
        holder.stderr.close()


def missing(program: str, package: str) -> str | None:
    """What to say of a program that is not here; None where it is."""
    return None if shutil.which(program, path=f"{os.defpath}:/usr/sbin:/sbin") else f"missing: {program} (Debian: {package})"
