"""The wheel is the product: what it holds is all that an installation has."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"guest_api", "guest_client", "guest_fleet", "guest_metrics", "guest_service", "guest_transport", "vmm_proxy"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree without what git ignores."""
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "tests")
    shutil.copytree(ROOT, folder / "tree", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")],
        cwd=folder / "tree",
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_it_holds_no_top_level_module_that_is_not_ours(unpacked: Path) -> None:
    names = {path.name for path in unpacked.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == OURS


def test_it_holds_every_file_of_its_packages(unpacked: Path) -> None:
    for package in OURS:
        source = ROOT / "generated" / package if package in {"guest_api", "guest_fleet"} else ROOT / package
        files = {path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        assert files == {path.relative_to(unpacked / package) for path in (unpacked / package).rglob("*") if path.is_file()}
        assert Path("py.typed") in files


def test_two_builds_of_one_tree_are_the_same_bytes(wheel: Path) -> None:
    again = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheel.parent.parent / "again")],
        cwd=wheel.parent.parent / "tree",
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert again.returncode == 0, again.stderr
    assert (wheel.parent.parent / "again" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("rack", ["h200", "h200x8", "none", "no-driver"])
def test_the_agent_in_it_finds_its_racks(unpacked: Path, rack: str) -> None:
    done = _run(unpacked, "guest_service", "gpu-info", "--simulate", rack)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('{"gpus":[')


@pytest.mark.parametrize("package", ["guest_service", "vmm_proxy", "guest_client.guestctl"])
def test_each_command_in_it_starts(unpacked: Path, package: str) -> None:
    done = _run(unpacked, package, "--version")
    assert (done.returncode, done.stderr) == (0, "")


def _run(unpacked: Path, package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # In the folder itself, which comes before this repository in sys.path.
    return subprocess.run(
        [sys.executable, "-m", package, *arguments], cwd=unpacked, capture_output=True, text=True, check=False, timeout=30
    )
