"""The lock files agree with pyproject.toml and with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging.source_tree import ROOT
from tools.floors import constraints, floors, pins

LOCKS = sorted((ROOT / "requirements").glob("*.lock.txt"))


def text(lock: str) -> str:
    return (ROOT / "requirements" / lock).read_text(encoding="utf-8")


def parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def blocks(lock: str) -> dict[str, str]:
    """Each pin with its hashes."""
    return {block.partition("==")[0]: block for block in re.split(r"\n(?=\S)", text(lock).strip())}


def promised() -> dict[str, str]:
    return floors((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_there_is_a_lock_for_each_thing_that_is_installed_and_of_the_floors() -> None:
    assert [file.name for file in LOCKS] == [
        "bench.lock.txt",
        "dev.lock.txt",
        "docs.lock.txt",
        "floor.lock.txt",
        "fuzz.lock.txt",
        "image.lock.txt",
        "runtime.lock.txt",
    ]


@pytest.mark.parametrize("lock", ["runtime.lock.txt", "image.lock.txt"])
def test_what_is_installed_is_what_was_tested(lock: str) -> None:
    tested = blocks("dev.lock.txt")
    for name, block in blocks(lock).items():
        assert tested[name] == block, f"{name}: requirements/{lock} differs from dev.lock.txt; run make lock"


def test_the_image_has_what_the_packages_have_and_the_client_of_kubernetes() -> None:
    image, packages = pins(text("image.lock.txt")), pins(text("runtime.lock.txt"))
    assert packages.items() <= image.items()
    assert {"lightkube", "httpx2"} <= image.keys() - packages.keys()


def test_the_site_is_built_in_the_same_environment_as_everything_else() -> None:
    tested = blocks("dev.lock.txt")
    for name, block in blocks("docs.lock.txt").items():
        if name in tested:
            assert tested[name].splitlines()[0] == block.splitlines()[0], f"{name}: docs.lock.txt wants another; run make lock"


def test_every_runtime_dependency_is_locked_and_not_below_its_floor() -> None:
    locked = pins(text("runtime.lock.txt"))
    for name, floor in promised().items():
        assert parts(locked[name]) >= parts(floor), name


def test_the_floor_lock_holds_each_floor_itself() -> None:
    locked = pins(text("floor.lock.txt"))
    for name, floor in promised().items():
        width = max(len(parts(floor)), len(parts(locked[name])))
        padded = [(parts(version) + (0,) * width)[:width] for version in (floor, locked[name])]
        assert padded[0] == padded[1], f"{name}: pyproject.toml promises {floor}, tested is {locked[name]}; run make lock"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda file: file.name)
def test_every_pin_has_a_hash_and_none_names_a_place(lock: Path) -> None:
    for name, block in blocks(lock.name).items():
        assert "--hash=sha256:" in block, name
        assert "://" not in block, name


def test_the_floors_are_as_high_as_the_generated_code_asks_for() -> None:
    # Generated code refuses to be imported by an older runtime; it rises with the generators whenever they are upgraded.
    for file in (ROOT / "generated").rglob("*_pb2_grpc.py"):
        found = re.search(r"GRPC_GENERATED_VERSION = '([0-9.]+)'", file.read_text(encoding="utf-8"))
        assert found
        assert parts(promised()["grpcio"]) >= parts(found[1]), file
    for file in (ROOT / "generated").rglob("*_pb2.py"):
        found = re.search(r"Protobuf Python Version: ([0-9.]+)", file.read_text(encoding="utf-8"))
        assert found
        assert parts(promised()["protobuf"]) >= parts(found[1]), file


def test_a_runtime_dependency_without_a_floor_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'left-pad<2' is not NAME>=VERSION"):
        floors('[project]\ndependencies = ["left-pad<2"]')


def test_only_the_floors_are_exact_and_nothing_else_is_newer_than_it_is_tested() -> None:
    assert constraints({"a": "1"}, {"a": "3", "b": "2"}) == "a==1\nb<=2\n"
