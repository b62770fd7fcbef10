"""A real Podman with a root file system imported from a tarball: no registry, nothing kept, nothing shared with the machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import eventually_here

IMAGE = "localhost/tiny:1"
MISSING = {
    "podman": "podman",
    "runc": "runc",
    "busybox": "busybox-static",
}


def missing_for_podman() -> str | None:
    """What this machine lacks, or None."""
    for tool, package in MISSING.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: {package})"
    return None if os.geteuid() == 0 else "needs root"


class Podman:
    """The engine's command, and the socket of its Docker-compatible API."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "p.sock"
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        (folder / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\nnetns = "none"\nlog_driver = "k8s-file"\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
        )

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            ["podman", *arguments], env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def import_image(self) -> None:
        """Make IMAGE of busybox alone."""
        tarball = self.folder / "root.tar"
        busybox = shutil.which("busybox")
        assert busybox is not None
        with tarfile.open(tarball, "w") as tar:
            tar.add(busybox, "bin/busybox")
            for name in ("sh", "echo", "sleep"):
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        self("import", str(tarball), IMAGE)


@contextmanager
def running_podman() -> Iterator[Podman]:
    """Podman's API on a socket of its own; containers, image and mounts are gone afterwards."""
    podman = Podman(Path(tempfile.mkdtemp(prefix="pm-")))
    try:
        podman.import_image()
        service = subprocess.Popen(
            ["podman", "system", "service", "--time", "0", f"unix://{podman.socket}"],
            env=podman.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually_here(podman.socket.exists)
            yield podman
        finally:
            podman("rm", "--all", "--force", "--time", "0")
            service.terminate()
            service.wait(30)
    finally:
        for mount in sorted(_mounts_below(podman.folder), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        # Podman cleans up behind an ended container in a process of its own, which may still write.
        eventually_here(lambda: _removed(podman.folder))


def _removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]
