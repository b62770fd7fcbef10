"""Builds the Debian packages guest-service and vmm-proxy into dist/, for the Debian or Ubuntu release that it runs on.

Each package has an environment of its own under /opt, made here from the wheel and requirements/runtime.lock.txt with the system's Python
and compiled to the end; everything Debian is debhelper's, told what to do by deploy/debian/. It refuses to use anything but binary packages
with the locked hashes. Rejected: dh-virtualenv, nfpm and maintainer scripts of our own (docs/decisions/packaging.md).
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build/debian"
DIST = ROOT / "dist"
# The interpreter that the packages depend on; the one that runs this may be any.
PYTHON = "/usr/bin/python3"
# The commands that each package puts on the PATH, under /opt/PACKAGE/bin.
PACKAGES = {"guest-service": ("guest-service",), "vmm-proxy": ("vmm-proxy", "guestctl")}
UNITS = {
    "guest-service": ("guest-service.service", "guest-service-http.socket", "guest-service-boot-gate.service"),
    "vmm-proxy": ("vmm-proxy.service",),
}
# Where each file of deploy/ becomes configuration.
CONFIGURATION = {
    "guest-service.example.toml": "etc/guest-service/config.toml",
    "boot-gate.example.toml": "etc/guest-service/boot-gate.toml",
    "debian/vmm-proxy.toml": "etc/vmm-proxy/config.toml",
}
NEEDED = {"dh": "debhelper", "dpkg-buildpackage": "dpkg-dev", PYTHON: "python3"}


def debian_version(version: str, release: str) -> str:
    """Debian's form of a Python version, for one release: newer releases sort after older ones, and pre-releases before releases."""
    # Nothing sorts before a tilde but another one.
    marks = {".dev": "~~dev", "a": "~a", "b": "~b", "rc": "~rc"}
    return re.sub(r"(\.dev|a|b|rc)(?=\d)", lambda found: marks[found[1]], version) + f"-1~{release}"


def release_name(os_release: Mapping[str, str]) -> str:
    """`debian12`, `ubuntu24.04`; a release without a number goes by its code name."""
    return os_release["ID"] + os_release.get("VERSION_ID", os_release.get("VERSION_CODENAME", ""))


def maintainer(control: str, variables: Mapping[str, str]) -> str:
    """Who answers for the packages: DEBFULLNAME and DEBEMAIL, as Debian's tools have it (dch(1)), else what debian/control says."""
    name, address = variables.get("DEBFULLNAME"), variables.get("DEBEMAIL")
    if name and address:
        return f"{name} <{address}>"
    written = re.search(r"^Maintainer: (.+)$", control, re.MULTILINE)
    assert written
    return written[1]


def changelog(version: str, seconds: int, who: str) -> str:
    """The entry that Debian's tools take name, version and date from."""
    release, date = version.partition("-")[0], formatdate(seconds)
    return f"guestscope ({version}) unstable; urgency=medium\n\n  * Release {release}.\n\n -- {who}  {date}\n"


def launcher(package: str, entry_point: str) -> str:
    """The program in /opt/PACKAGE/bin that runs `module:function`, isolated from the caller's PYTHON* variables and packages."""
    module, _, function = entry_point.partition(":")
    return f"#!/opt/{package}/bin/python3 -I\nfrom {module} import {function}\n\nraise SystemExit({function}())\n"


def main() -> int:
    """Build both; returns the exit status."""
    missing = [package for program, package in NEEDED.items() if shutil.which(program) is None]
    if missing:
        sys.stderr.write(f"make deb: needs what is not here: apt-get install {' '.join(missing)}\n")
        return 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = debian_version(project["version"], release_name(platform.freedesktop_os_release()))
    shutil.rmtree(BUILD, ignore_errors=True)
    tree = BUILD / "guestscope"
    _lay_out(tree, version, int(os.environ["SOURCE_DATE_EPOCH"]))
    site = BUILD / "environment"
    _install(site, DIST / f"guestscope-{project['version']}-py3-none-any.whl")
    for package, commands in PACKAGES.items():
        _environment(tree, package, site, {command: project["scripts"][command] for command in commands})
    _run(
        ["dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps"],
        cwd=tree,
        variables={"PYTHON_DEPENDS": _python_depends()},
    )
    for old in DIST.glob("*.deb"):
        old.unlink()
    for built in BUILD.glob("*.deb"):
        shutil.move(built, DIST / built.name)
        sys.stdout.write(f"{(DIST / built.name).relative_to(ROOT)}\n")
    return 0


def _lay_out(tree: Path, version: str, seconds: int) -> None:
    """What debhelper is to find beside the environments."""
    deploy, debian = ROOT / "deploy", tree / "debian"
    shutil.copytree(deploy / "debian", debian)
    for package, units in UNITS.items():
        for unit in units:
            shutil.copyfile(deploy / "systemd" / unit, debian / f"{package}.{unit}")
    for source, target in CONFIGURATION.items():
        (tree / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(deploy / source, tree / target)
    (tree / "examples").mkdir()
    for example in deploy.glob("*.example.toml"):
        shutil.copyfile(example, tree / "examples" / example.name)
    shutil.copyfile(ROOT / "CHANGELOG.md", tree / "CHANGELOG.md")
    control = (debian / "control").read_text(encoding="utf-8")
    who = maintainer(control, os.environ)
    (debian / "control").write_text(re.sub(r"(?m)^Maintainer: .+$", lambda _: f"Maintainer: {who}", control), encoding="utf-8")
    (debian / "changelog").write_text(changelog(version, seconds, who), encoding="utf-8")


def _install(site: Path, wheel: Path) -> None:
    """One environment with everything, not yet for a place."""
    _run([PYTHON, "-m", "venv", "--without-pip", "--symlinks", str(site)])
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(site / "bin/python3"),
        "install",
        "--quiet",
    ]
    pip += ["--no-compile", "--no-warn-script-location"]
    _run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(ROOT / "requirements/runtime.lock.txt")])
    # By name from a folder: a wheel that is named by its path would leave that path behind in direct_url.json.
    _run([*pip, "--no-deps", "--no-index", "--find-links", str(wheel.parent), f"guestscope=={wheel.name.split('-')[1]}"])


def _environment(tree: Path, package: str, site: Path, scripts: Mapping[str, str]) -> None:
    """The environment of one package, as if it had been made in /opt."""
    place = tree / "opt" / package
    shutil.copytree(site / "lib", place / "lib", symlinks=True)
    for file in (place / "lib").rglob("*"):
        if file.name == "RECORD":
            # Lists programs that are not shipped; what the package holds is dpkg's to know.
            file.unlink()
        elif file.is_file():
            # Some wheels mark modules as programs, which nothing here runs as such.
            file.chmod(0o644)
    # The proxy may need Debian's python3-libvirt, which comes after its own packages; the agent needs nothing of the system's.
    shared = "true" if package == "vmm-proxy" else "false"
    (place / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = {shared}\n", encoding="utf-8")
    (place / "bin").mkdir()
    (place / "bin/python3").symlink_to(PYTHON)
    for command, entry_point in scripts.items():
        file = place / "bin" / command
        file.write_text(launcher(package, entry_point), encoding="utf-8")
        file.chmod(0o755)
    # unchecked-hash: dpkg-deb sets the times of files back to the release's, and a compiled file with another time in it would never be
    # used. Without compiled files every GPU sample compiles its way up, in three times the time.
    compiler = [PYTHON, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", "/"]
    _run([*compiler, str(place / "lib")], variables={"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": ""})


def _python_depends() -> str:
    version = subprocess.run(
        [PYTHON, "-c", "import sys; print(*sys.version_info[:2])"], check=True, capture_output=True, text=True
    ).stdout
    major, minor = map(int, version.split())
    return f"python3 (>= {major}.{minor}~), python3 (<< {major}.{minor + 1}~)"


def _run(command: Sequence[str], *, cwd: Path | None = None, variables: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, cwd=cwd, env={**os.environ, **(variables or {})}, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
