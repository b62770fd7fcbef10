"""A Linux kernel to boot, from Debian's package: the image, as it is and unpacked once more, and the modules that the tests load.

Only downloaded and unpacked, never installed: an installed kernel brings 400 MB of tools, and changes the machine.

    python -m tests.vm.kernel FOLDER      fetch the kernel into FOLDER, unless it is there
"""

from __future__ import annotations

import lzma
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "vm" / "kernel"
# Debian's metapackage for the plain kernel; the cloud kernel has no 9p.
METAPACKAGE = "linux-image-amd64"
# What of /lib/modules/VERSION/kernel is kept: 20 MB of 300.
MODULE_FOLDERS = (
    *("drivers/virtio/", "net/9p/", "fs/9p/", "fs/netfs/", "fs/fscache/", "net/vmw_vsock/"),
    # For a root on a disk: ext4 and what it needs.
    *("drivers/block/virtio_blk", "fs/ext4/", "fs/jbd2/", "fs/mbcache", "lib/crc16", "crypto/crc32c_generic"),
)
_XZ = b"\xfd7zXZ\0"
_ELF = b"\x7fELF"


class KernelError(Exception):
    """The kernel cannot be had."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in a folder: `image` for QEMU, `packed` for a machine that is to be suspended, modules by name."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "image"

    @property
    def packed(self) -> Path:
        return self.folder / "image.packed"

    @property
    def kept(self) -> str:
        """Of which folders the modules are, when all is there."""
        file = self.folder / "kept"
        return file.read_text() if file.is_file() else ""

    def modules(self, *names: str) -> list[tuple[str, bytes]]:
        """Name and content of the modules `names` and of what they need, in the order in which they are loaded."""
        loaded: dict[str, bytes] = {}
        for name in names:
            self._load(name, loaded)
        return list(loaded.items())

    def _load(self, name: str, loaded: dict[str, bytes]) -> None:
        if name in loaded:
            return
        files = [path for path in (self.folder / "modules").iterdir() if re.sub(r"\.ko(\.xz)?$", "", path.name) == name]
        if not files:
            raise KernelError(f"the kernel has no module {name}; it may be built in, or MODULE_FOLDERS lacks its place")
        data = files[0].read_bytes()
        data = lzma.decompress(data) if files[0].suffix == ".xz" else data
        needs = re.search(rb"\0?depends=([^\0]*)\0", data)
        for needed in (needs[1].decode() if needs else "").split(","):
            if needed:
                self._load(needed, loaded)
        loaded[name] = data


def kernel_in(folder: Path) -> Kernel | None:
    """The kernel that was fetched into `folder`, or None; one that was fetched with other modules is none."""
    kernel = Kernel(folder)
    return kernel if kernel.kept == _wanted() else None


def _wanted() -> str:
    return "\n".join(MODULE_FOLDERS)


def fetch(folder: Path) -> Kernel:
    """Download Debian's kernel into `folder`; raises KernelError."""
    present = kernel_in(folder)
    if present:
        return present
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        package = _download(Path(work))
        image = b""
        (folder / "modules").mkdir(exist_ok=True)
        for path, data in _files(package):
            if path.startswith("boot/vmlinuz-"):
                image = data
            else:
                (folder / "modules" / Path(path).name).write_bytes(data)
    kernel = Kernel(folder)
    kernel.packed.write_bytes(image)
    kernel.image.write_bytes(_unpacked(image))
    # Last and whole: its presence says that the rest is there.
    whole = folder / "kept.new"
    whole.write_text(_wanted())
    whole.rename(folder / "kept")
    return kernel


def _download(work: Path) -> Path:
    depends = _run(["apt-cache", "depends", METAPACKAGE], work)
    package = re.search(r"Depends: (linux-image-\d\S*)", depends)
    if not package:
        raise KernelError(f"apt knows no kernel behind {METAPACKAGE}; run apt-get update")
    _run(["apt-get", "download", "-qq", package[1]], work)
    return next(work.glob("*.deb"))


def _files(package: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of the files that are wanted."""
    unpack = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    with unpack, tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
        for member in tar:
            path = member.name.removeprefix("./").removeprefix("usr/")
            inside = path.partition("/kernel/")[2]
            if member.isfile() and (path.startswith("boot/vmlinuz-") or inside.startswith(MODULE_FOLDERS)):
                content = tar.extractfile(member)
                assert content
                yield path, content.read()


def _unpacked(image: bytes) -> bytes:
    """The kernel inside a compressed image, which QEMU boots 2 s sooner; the image itself where it is packed in another way."""
    start = image.find(_XZ)
    try:
        inner = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(image[start:]) if start >= 0 else b""
    except lzma.LZMAError:
        inner = b""
    return inner if inner.startswith(_ELF) else image


def _run(command: list[str], work: Path) -> str:
    try:
        return subprocess.run(command, cwd=work, check=True, capture_output=True, text=True, timeout=300).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise KernelError(f"{' '.join(command)}: {getattr(error, 'stderr', '') or error}") from error


if __name__ == "__main__":
    try:
        fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
    except KernelError as error:
        raise SystemExit(f"no kernel for the virtual machines: {error}") from error
