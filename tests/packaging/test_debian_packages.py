"""The Debian packages, installed and removed in a root of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.debian_root import DebianRoot, built, missing_parts, unpacked
from tests.packaging.source_tree import ROOT, VERSION

# mmdebstrap fetches and unpacks some hundred packages, the first time: a minute.
pytestmark = [pytest.mark.deb, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRoot]:
    if missing := missing_parts():
        pytest.skip(f"missing: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("debian") / "root"
    yield unpacked(folder)
    shutil.rmtree(folder)


def package(name: str) -> Path:
    found = built(name)
    if found is None:
        pytest.skip(f"missing: {name} in dist/ (make deb)")
    return found


@pytest.mark.parametrize("name", ["guest-service", "vmm-proxy"])
def test_lintian_finds_no_error(name: str) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is missing: apt-get install lintian")
    judged = subprocess.run(
        ["lintian", "--allow-root", "--tag-display-limit", "20", "--fail-on", "error", package(name)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_the_agents_package_works_and_leaves_nothing_behind(root: DebianRoot) -> None:
    before = root.files()
    root.install(package("guest-service"))
    assert VERSION in root.said("guest-service", "--version")
    assert len(json.loads(root.said("guest-service", "gpu-info", "--simulate", "h200x8"))["gpus"]) == 8
    root.said("guest-service", "check-config", "--config", "/etc/guest-service/config.toml")
    assert root.said("systemctl", "is-enabled", "guest-service.service") == "enabled\n"
    for left_to_the_operator in ("guest-service-http.socket", "guest-service-boot-gate.service"):
        assert root.run("systemctl", "is-enabled", left_to_the_operator).stdout == "disabled\n"
    assert root.mode("/var/lib/guest-service") == (0o700, 0)
    root.said("dpkg", "--remove", "guest-service")
    assert {name for name in root.files() - before if not name.startswith(("/etc/", "/var/lib/"))} == set()
    assert (root.folder / "etc/guest-service/config.toml").exists()
    root.said("dpkg", "--purge", "guest-service")
    assert root.files() - before <= {"/var/lib/systemd/deb-systemd-helper-enabled", "/var/lib/systemd/deb-systemd-helper-masked"}


def test_the_proxys_package_works_under_its_own_user_and_leaves_only_that_behind(root: DebianRoot) -> None:
    before = root.files()
    root.install(package("vmm-proxy"))
    assert VERSION in root.said("vmm-proxy", "--version")
    assert VERSION in root.said("guestctl", "--version")
    # As the unit runs it, so that the folders of the configuration are there and open to it.
    root.said("setpriv", "--reuid=vmm-proxy", "--regid=vmm-proxy", "--clear-groups",
              "vmm-proxy", "check-config", "--config", "/etc/vmm-proxy/config.toml")  # fmt: skip
    assert root.said("systemctl", "is-enabled", "vmm-proxy.service") == "enabled\n"
    group = int(root.said("id", "-g", "vmm-proxy"))
    assert root.mode("/etc/vmm-proxy/guests.d") == (0o750, group)
    assert root.mode("/var/lib/vmm-proxy") == (0o700, group)
    (root.folder / "etc/vmm-proxy/guests.d/vm1.toml").write_text('id = "vm1"\naddress = "vsock:3:8000"\n', encoding="utf-8")
    root.said("dpkg", "--purge", "vmm-proxy")
    allowed = {"/var/lib/systemd/deb-systemd-helper-enabled", "/var/lib/systemd/deb-systemd-helper-masked"}
    assert root.files() - before <= {*allowed, "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.pwd.lock"}
    # Files that it owned may be anywhere, so Debian keeps a user whose number must not be given to somebody else.
    assert root.run("id", "vmm-proxy").returncode == 0


@pytest.mark.parametrize("name", ["guest-service", "vmm-proxy"])
def test_every_module_is_compiled_for_good_and_knows_where_it_lies(name: str, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", package(name), tmp_path], check=True)
    place = tmp_path / "opt" / name
    (site,) = (place / "lib").glob("python3.*/site-packages")
    compiled = list(site.glob("guest_service/collector/__pycache__/gpu_info.*.pyc"))
    assert len(compiled) == 1
    content = compiled[0].read_bytes()
    # PEP 552: bit 0 is "by hash", bit 1 is "look at the source": a time or a look would make a file from a package stale.
    assert int.from_bytes(content[4:8], "little") == 1
    assert f"/opt/{name}/lib/".encode() in content
    assert str(ROOT).encode() not in content
    for module in site.glob("guest_*/**/*.py"):
        assert list(module.parent.glob(f"__pycache__/{module.stem}.cpython-*.pyc")), module
