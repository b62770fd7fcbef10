"""The first file system of a virtual machine: busybox, modules, and an init that goes over to this machine's / or to a disk.

Written here in the cpio format "newc" (the kernel's early-userspace/buffer-format), so that no cpio, no kmod and no
initramfs-tools are needed.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterable
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
# The 9p tags of the two shares: this machine's root, read-only, and the folder for results.
ROOT_TAG = "root"
RESULTS_TAG = "results"
# Where the results folder is inside; /run is the machine's own memory.
RESULTS = Path("/run/results")
SCRATCH = Path("/run/scratch")

_MODULES = """#!/bin/busybox sh
b=/bin/busybox
stop() {{ echo "gs-init: $1"; $b poweroff -f; }}
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module || stop "insmod $module"; done
"""
_SHARED_ROOT = """
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro {root} /new || stop "no root"
for place in proc sys dev; do $b mount --move /$place /new/$place; done
$b mount -t tmpfs run /new/run; $b mkdir -p /new/dev/shm /new/dev/pts {scratch} {results}
$b mount -t tmpfs shm /new/dev/shm; $b mount -t devpts pts /new/dev/pts
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=none {results_tag} {results} || stop "no results"
$b ip link set lo up
exec $b switch_root /new {program}
"""
_DISK_ROOT = """
$b mount -t ext4 /dev/vda /new || stop "no root"
for place in proc sys dev; do $b mount --move /$place /new/$place; done
exec $b switch_root /new {program}
"""


def initrd(modules: Iterable[tuple[str, bytes]], program: list[str]) -> bytes:
    """An initrd that loads `modules` in their order and runs `program`, of this machine's /, as process 1."""
    init = (_MODULES + _SHARED_ROOT).format(
        root=ROOT_TAG,
        results_tag=RESULTS_TAG,
        scratch=f"/new{SCRATCH}",
        results=f"/new{RESULTS}",
        program=shlex.join(program),
    )
    return _archive(modules, init)


def disk_initrd(modules: Iterable[tuple[str, bytes]], program: list[str]) -> bytes:
    """An initrd that loads `modules` in their order and runs `program`, of the ext4 file system on the first disk, as process 1."""
    return _archive(modules, (_MODULES + _DISK_ROOT).format(program=shlex.join(program)))


def _archive(modules: Iterable[tuple[str, bytes]], init: str) -> bytes:
    folders = ("bin", "proc", "sys", "dev", "modules", "new")
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in folders]
    entries += [("init", stat.S_IFREG | 0o755, init.encode()), ("bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes())]
    entries += [(f"modules/{number:03d}-{name}.ko", stat.S_IFREG | 0o644, data) for number, (name, data) in enumerate(modules)]
    archive = b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))
    return archive + _entry(0, "TRAILER!!!", 0, b"")


def _entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    links, name_size = 2 if stat.S_ISDIR(mode) else 1, len(name) + 1
    fields = (inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, name_size, 0)
    head = b"070701" + b"".join(f"{field:08x}".encode() for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
