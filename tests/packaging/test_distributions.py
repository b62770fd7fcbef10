"""What stands in wheel and sdist, and that two builds are the same."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.source_tree import PROJECT, ROOT, VERSION, Distributions, build, copy_tree

OURS = {
    "guest_api",
    "guest_client",
    "guest_contract",
    "guest_fleet",
    "guest_metrics",
    "guest_pages",
    "guest_service",
    "guest_transport",
    "vmm_proxy",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder = tmp_path_factory.mktemp("built")
    return build(copy_tree(folder / "tree"), folder / "dist")


@pytest.fixture(scope="module")
def wheel_names(built: Distributions) -> set[str]:
    with zipfile.ZipFile(built.wheel) as wheel:
        return set(wheel.namelist())


def test_two_builds_are_the_same_to_the_byte_wherever_and_by_whomever(built: Distributions, tmp_path: Path) -> None:
    other = build(
        copy_tree(tmp_path / "another place" / "tree"),
        tmp_path / "dist",
        umask=0o077,
        environment={"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "4", "HOME": str(tmp_path)},
    )
    assert (other.wheel.name, other.sdist.name) == (built.wheel.name, built.sdist.name)
    assert other.wheel.read_bytes() == built.wheel.read_bytes()
    assert other.sdist.read_bytes() == built.sdist.read_bytes()


def test_the_files_are_dated_by_the_commit_and_not_by_the_build(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        assert {entry.date_time for entry in wheel.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(built: Distributions, tmp_path: Path) -> None:
    # tar, because extractall() wants a filter from Python 3.12 on and knows none in 3.11.2.
    subprocess.run(["tar", "-xzf", built.sdist, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.iterdir()
    assert build(unpacked, tmp_path / "dist").wheel.read_bytes() == built.wheel.read_bytes()


def test_every_file_of_our_packages_is_in_the_wheel_and_no_other(wheel_names: set[str]) -> None:
    packages = [ROOT / each for each in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    files = {
        str(file.relative_to(package.parent))
        for package in packages
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {name for name in wheel_names if ".dist-info/" not in name} == files


def test_no_top_level_name_in_the_wheel_belongs_to_somebody_else(wheel_names: set[str]) -> None:
    assert {name.partition("/")[0] for name in wheel_names} == {*OURS, f"guestscope-{VERSION}.dist-info"}


def test_every_package_says_that_it_is_typed_and_generated_code_has_its_stubs(wheel_names: set[str]) -> None:
    assert {f"{package}/py.typed" for package in OURS} <= wheel_names
    generated = {name for name in wheel_names if re.search(r"_pb2(_grpc)?\.py$", name)}
    assert len(generated) == 4
    assert {f"{name}i" for name in generated} <= wheel_names


def test_templates_racks_and_the_licence_travel_with_the_code(wheel_names: set[str]) -> None:
    for wanted in (
        "guest_service/dashboard/templates/page.html",
        "guest_pages/assets/live.js",
        "guest_transport/http/assets/look.css",
        "vmm_proxy/pages/dashboard/templates/guest.html",
        "vmm_proxy/pages/dashboard/assets/fleet.js",
        "guest_service/simulator/racks/h200.toml",
        f"guestscope-{VERSION}.dist-info/licenses/LICENSE",
    ):
        assert wanted in wheel_names


def test_the_sdist_holds_what_a_distribution_needs_to_package_it(built: Distributions) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {
        "deploy/systemd/guest-service.service",
        "requirements/runtime.lock.txt",
        "requirements/image.lock.txt",
        "proto/guest_api/guest_api.proto",
        "LICENSE",
        "CHANGELOG.md",
    } <= names


def test_the_version_is_written_in_pyproject_toml_only() -> None:
    for package in OURS - {"guest_api", "guest_fleet"}:
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert "__version__" not in text, file
            assert f'"{VERSION}"' not in text, file
