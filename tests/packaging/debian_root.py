"""A Debian of its own in a folder, with packages installed and removed as a machine's owner would.

mmdebstrap fetches it once, into build/, as an archive that each run unpacks: a minute and the network are needed the first time only.
`make clean` has it fetched anew.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path

from tests.packaging.source_tree import ROOT, VERSION

ARCHIVE = ROOT / "build/debian-root.tar"
# What both packages depend on.
DEPENDENCIES = "systemd,python3,libstdc++6"
DIST = ROOT / "dist"
# A program in the root; a package's installation on a busy machine.
COMMAND_SECONDS = 120


class DebianRoot:
    """The root file system in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the root, with nothing of this machine's environment."""
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        return subprocess.run(
            # With a /proc of its own, which systemd-tmpfiles needs and every machine has; it goes with the command.
            ["unshare", "--mount", "--pid", "--fork", f"--mount-proc={self.folder}/proc", "chroot", str(self.folder), *command],
            check=False,
            capture_output=True,
            text=True,
            env=variables,
            timeout=COMMAND_SECONDS,
        )

    def said(self, *command: str) -> str:
        """What a command that must succeed prints."""
        ended = self.run(*command)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def install(self, package: Path) -> None:
        """Installs a package file; what it depends on must be there."""
        target = self.folder / "root" / package.name
        target.write_bytes(package.read_bytes())
        try:
            self.said("dpkg", "--install", f"/root/{package.name}")
        finally:
            target.unlink()

    def files(self) -> set[str]:
        """Every file, folder and link but dpkg's own records and logs."""
        found = set()
        for path in self.folder.rglob("*"):
            name = f"/{path.relative_to(self.folder)}"
            if not name.startswith(("/var/lib/dpkg/", "/var/log/", "/proc/", "/sys/", "/dev/")):
                found.add(name)
        return found

    def mode(self, name: str) -> tuple[int, int]:
        """Permissions and group of a file or folder."""
        found = (self.folder / name.lstrip("/")).stat()
        return stat.S_IMODE(found.st_mode), found.st_gid


def missing_parts() -> list[str]:
    """What is needed for a root with our packages and is not here."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root, for chroot")
    if not ARCHIVE.exists() and shutil.which("mmdebstrap") is None:
        missing.append("mmdebstrap")
    missing += [f"{name} in dist/ (make deb)" for name in ("guest-service", "vmm-proxy") if not built(name)]
    return missing


def built(name: str) -> Path | None:
    """The package of this version, built for this machine's release."""
    return next(iter(DIST.glob(f"{name}_{VERSION}-*.deb")), None)


def unpacked(folder: Path) -> DebianRoot:
    """A fresh root in the new `folder`."""
    if not ARCHIVE.exists():
        _fetch()
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--numeric-owner", "--file", ARCHIVE, "--directory", folder], check=True)
    return DebianRoot(folder)


def _fetch() -> None:
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    ARCHIVE.parent.mkdir(exist_ok=True)
    unfinished = ARCHIVE.with_suffix(".unfinished")
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=tar", f"--include={DEPENDENCIES}"]
    made = subprocess.run([*command, codename, str(unfinished)], check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    unfinished.rename(ARCHIVE)
