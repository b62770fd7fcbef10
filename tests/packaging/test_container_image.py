"""The image of the proxy, built from its container file and run as docs/install-host.md says, without a registry.

What stands in for the two base images is a Debian made here: whole for the build, and for the last stage without any shell or package
manager. So the commands, the paths and what the image needs at run time are tried; what Google's image lacks besides is not.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.host_facts.podman import Podman, missing_for_podman
from tests.packaging.source_tree import ROOT, VERSION

pytestmark = [pytest.mark.deb, pytest.mark.timeout(1500)]
FILE = ROOT / "deploy/container/Dockerfile"
STEP_SECONDS = 1200
# What Google's image has none of.
LEFT_OUT = re.compile(r"\./(usr/)?(bin/(sh|dash|bash|rbash|perl.*)|(s?bin|bin)/(apt|dpkg).*)")
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")


def must(*command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=STEP_SECONDS, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def bases(podman: Podman) -> None:
    """Images under the names that the container file begins with."""
    whole, less = podman.folder / "whole.tar", podman.folder / "less.tar"
    must(
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=minbase",
        "--include=python3,python3-venv,libstdc++6",
        "bookworm",
        str(whole),
    )
    with tarfile.open(whole) as all_of_it, tarfile.open(less, "w") as kept:
        for member in all_of_it:
            if not LEFT_OUT.fullmatch(member.name):
                kept.addfile(member, all_of_it.extractfile(member) if member.isfile() else None)
    named = re.findall(r"^FROM (\S+)", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == 2
    for name, tarball in zip(named, (whole, less), strict=True):
        must(
            "podman",
            "import",
            str(tarball),
            name if "." in name.split("/")[0] else f"docker.io/library/{name}",
            environment=podman.environment,
        )
        tarball.unlink()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """An engine of its own that has the image."""
    if missing := missing_for_podman():
        pytest.skip(missing)
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is missing: apt-get install mmdebstrap")
    if not list((ROOT / "dist").glob(f"guestscope-{VERSION}-*.whl")):
        pytest.skip("there is no wheel in dist: make wheel")
    podman = Podman(tmp_path_factory.mktemp("image"))
    try:
        bases(podman)
        # pip in the build believes whom this machine believes.
        settings = podman.folder / "pip.conf"
        settings.write_text("[global]\ncert = /etc/authorities.crt\n")
        mounts = ("-v", f"{settings}:/etc/pip.conf:ro", "-v", f"{AUTHORITIES}:/etc/authorities.crt:ro")
        must(
            *(
                "podman",
                "build",
                "--pull=never",
                "--layers=false",
                "--network=host",
                *mounts,
                "-f",
                str(FILE),
                "-t",
                "vmm-proxy",
                ".",
            ),
            environment=podman.environment,
        )
        yield podman
    finally:
        shutil.rmtree(podman.folder, ignore_errors=True)


@contextmanager
def running(podman: Podman, folder: Path) -> Iterator[Path]:
    """The image running with the options of the page; its socket."""
    page = (ROOT / "docs/install-host.md").read_text(encoding="utf-8").replace("\\\n", " ")
    line = re.search(r"^docker run (.*) vmm-proxy$", page, re.MULTILINE)
    assert line
    options = line[1].replace('"65532:$(getent group vmm-proxy | cut -d: -f3)"', f"65532:{os.getgid()}").replace("--detach ", "")
    places = {"/etc/vmm-proxy-container:": f"{folder}/etc:", "-v /run/vmm-proxy:": f"-v {folder}/run:"}
    for told, here in places.items():
        assert told in options
        options = options.replace(told, here)
    (folder / "etc").mkdir()
    (folder / "etc/config.toml").write_text(
        "[http]\nlisten = 'off'\n[[guest]]\nid = 'vm1'\naddress = 'unix:/run/vmm-proxy/nobody'\n"
    )
    (folder / "run").mkdir(mode=0o750)
    os.chown(folder / "run", 65532, os.getgid())
    # Podman gives a read-only container places for temporary files of its own accord, and Docker does not.
    process = subprocess.Popen(
        ["podman", "run", "--rm", "--read-only-tmpfs=false", *options.split(), "vmm-proxy"],
        env=podman.environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = []
        for told in process.stderr:
            said.append(told)
            if "listening on" in told:
                break
        else:
            raise AssertionError(f"the proxy ended: {said}")
        yield folder / "run/vmm-proxy.sock"
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.stderr.close()
        assert process.wait(60) == 0


def test_the_image_serves_without_a_shell_without_rights_and_with_a_root_that_nobody_can_write(built: Podman) -> None:
    no_shell = subprocess.run(
        ["podman", "run", "--rm", "--network=host", "--entrypoint", "/bin/sh", "vmm-proxy", "-c", "true"],
        check=False, capture_output=True, text=True, env=built.environment, timeout=STEP_SECONDS,
    )  # fmt: skip
    assert no_shell.returncode != 0
    assert "/bin/sh" in no_shell.stderr
    told = json.loads(must("podman", "image", "inspect", "vmm-proxy", environment=built.environment))[0]["Config"]
    assert told["User"] == "65532:65532"
    folder = built.folder / "host"
    folder.mkdir()
    folder.chmod(0o755)
    for above in (built.folder, *built.folder.parents[:2]):
        above.chmod(0o755)
    with running(built, folder) as socket:
        assert socket.stat().st_mode & 0o777 == 0o660
        ask = (sys.executable, "-m", "guest_client.guestctl", "--proxy", f"unix:{socket}", "-o", "json", "list")
        assert [guest["id"] for guest in json.loads(must(*ask))["guests"]] == ["vm1"]


def test_the_image_serves_as_the_pods_of_kubernetes_do_and_has_the_client_of_a_cluster(built: Podman) -> None:
    kubernetes = ROOT / "deploy/kubernetes"
    process = subprocess.Popen(
        [
            *("podman", "run", "--rm", "--network=none", "--read-only", "--read-only-tmpfs=false", "--user", "65532:65532"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--security-opt", f"seccomp={kubernetes}/seccomp/guestscope-vmm-proxy.json"),
            *("--tmpfs", "/tmp:rw,mode=0777", "--tmpfs", "/run/vmm-proxy:rw,mode=0777"),
            *("-v", f"{kubernetes}/base/config.toml:/etc/vmm-proxy/config.toml:ro", "-e", "NODE_NAME=gpu-node-1", "vmm-proxy"),
        ],
        env=built.environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = ""
        wanted = ("listening on unix:/run/vmm-proxy/vmm-proxy.sock", "listening for HTTP on 0.0.0.0:9880", "this is no pod")
        for told in process.stderr:
            said += told
            if all(words in said for words in wanted):
                break
        else:
            raise AssertionError(f"the proxy ended: {said}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.stderr.close()
        assert process.wait(60) == 0
