"""Names, versions and launchers of the Debian packages."""

from __future__ import annotations

import shutil
import subprocess
from itertools import pairwise

import pytest

from tests.packaging.source_tree import ROOT
from tools.debian_packages import changelog, debian_version, launcher, maintainer, release_name


def test_a_prerelease_comes_before_its_release_and_a_newer_debian_after_an_older_one() -> None:
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is missing")
    ordered = [
        debian_version(version, release)
        for version, release in [
            ("0.2.0.dev1", "debian12"), ("0.2.0a1", "debian12"), ("0.2.0rc1", "debian12"), ("0.2.0rc1", "debian13"),
            ("0.2.0", "debian12"), ("0.2.0", "debian13"), ("0.10.0", "debian12"),
        ]
    ]  # fmt: skip
    for older, newer in pairwise(ordered):
        assert subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False).returncode == 0, (older, newer)


def test_a_release_without_a_number_goes_by_its_code_name() -> None:
    assert release_name({"ID": "ubuntu", "VERSION_ID": "24.04"}) == "ubuntu24.04"
    assert release_name({"ID": "debian", "VERSION_CODENAME": "sid"}) == "debiansid"


def test_a_program_is_isolated_from_its_callers_python() -> None:
    assert launcher("vmm-proxy", "vmm_proxy.__main__:main").startswith("#!/opt/vmm-proxy/bin/python3 -I\n")


def test_the_changelog_is_dated_by_the_commit() -> None:
    assert "  Thu, 01 Jan 1970 00:00:00 -0000" in changelog("1.0-1~debian12", 0, "Somebody <somebody@example.org>")


def test_who_builds_the_packages_answers_for_them_when_named_whole() -> None:
    control = "Source: guestscope\nMaintainer: The project <nobody@project.invalid>\nSection: admin\n"
    named = {"DEBFULLNAME": "Some Cloud", "DEBEMAIL": "gpu@cloud.example"}
    assert maintainer(control, named) == "Some Cloud <gpu@cloud.example>"
    assert maintainer(control, {"DEBEMAIL": "gpu@cloud.example"}) == "The project <nobody@project.invalid>"


def test_without_a_builder_the_packages_name_the_project_and_an_address_that_can_be_nobodys() -> None:
    control = (ROOT / "deploy/debian/control").read_text(encoding="utf-8")
    # RFC 2606, section 2: a domain below .invalid is never registered.
    assert maintainer(control, {}) == "Guestscope project <project@guestscope.invalid>"
