"""The watched folder of guests: each file stands for itself, and a wrong one costs nobody but itself."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_transport.addresses import VsockAddress
from guest_transport.errors import SettingsError
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.folder import FILE_LIMIT_BYTES, FILES_LIMIT, Found, GuestFolder
from vmm_proxy.directory.sources import SourceState


def guest(guest_id: str, cid: int, extra: str = "") -> str:
    return f"id = '{guest_id}'\naddress = 'vsock:{cid}:8000'\n{extra}"


def known(directory: Directory) -> dict[str, str]:
    return {entry.id: str(entry.address) for entry in directory.after()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "guests.d"
    path.mkdir()
    return path


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.fixture
def scanned(folder: Path, directory: Directory) -> GuestFolder:
    return GuestFolder(folder, directory, allow_plaintext=False)


def test_only_toml_files_are_guests(folder: Path, directory: Directory, scanned: GuestFolder) -> None:
    (folder / "a.toml").write_text(guest("vm1", 3, "labels = { rack = '7' }\n"))
    (folder / ".a.toml.swp").write_text("nonsense")
    (folder / ".hidden.toml").write_text("nonsense")
    (folder / "README").write_text("nonsense")
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:3:8000"}
    assert scanned.refused == {}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("id = 'vm1'\naddress = 'nonsense'\n", "address"),
        (guest("vm1", 3, f"labels.{'a.' * 30_000}b = 1\n"), "a key of more than 100 names"),
        ("id = 'a/b'\naddress = 'vsock:3:1'\n", "id: must be"),
        ("not toml", "not TOML"),
        (guest("vm1", 3, "colour = 'red'\n"), "colour: unknown key"),
        ("#" * (FILE_LIMIT_BYTES + 1), "larger than"),
        (guest("taken", 3), "known already"),
        (guest("vm9", 99), "belongs to the running guest taken"),
    ],
)
def test_a_bad_file_is_refused_alone_and_its_last_good_version_stays(
    folder: Path, directory: Directory, scanned: GuestFolder, bad: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory.add(GuestEntry("taken", VsockAddress(99, 8000)))
    (folder / "a.toml").write_text(guest("vm1", 3))
    (folder / "b.toml").write_text(guest("vm2", 4))
    scanned.scan()
    changes: list[object] = []
    directory.subscribe(lambda before, after: changes.append((before, after)))
    (folder / "a.toml").write_text(bad)
    for _ in range(3):
        scanned.scan()
    assert known(directory) == {"taken": "vsock:99:8000", "vm1": "vsock:3:8000", "vm2": "vsock:4:8000"}
    assert changes == [], "a refused file touches nobody's line"
    assert reason in scanned.refused["a.toml"]
    assert scanned.state == SourceState(readable=True, refused=1)
    assert sum("a.toml" in message for message in caplog.messages) == 1, "said once, not at every look"
    (folder / "a.toml").write_text(guest("vm1", 5))
    scanned.scan()
    assert scanned.refused == {}
    assert known(directory)["vm1"] == "vsock:5:8000"


def test_two_guests_may_swap_their_addresses(folder: Path, directory: Directory, scanned: GuestFolder) -> None:
    (folder / "a.toml").write_text(guest("vm1", 3))
    (folder / "b.toml").write_text(guest("vm2", 4))
    scanned.scan()
    (folder / "a.toml").write_text(guest("vm1", 4))
    (folder / "b.toml").write_text(guest("vm2", 3))
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:4:8000", "vm2": "vsock:3:8000"}


def test_a_guest_that_stops_leaves_its_address_to_one_that_starts(
    folder: Path, directory: Directory, scanned: GuestFolder
) -> None:
    (folder / "z.toml").write_text(guest("old", 3))
    scanned.scan()
    (folder / "z.toml").write_text(guest("old", 3, "state = 'stopped'\n"))
    (folder / "a.toml").write_text(guest("new", 3))
    scanned.scan()
    assert scanned.refused == {}
    assert len(directory) == 2


def test_the_second_of_two_files_with_one_address_is_refused_until_the_first_is_gone(
    folder: Path, directory: Directory, scanned: GuestFolder
) -> None:
    (folder / "a.toml").write_text(guest("vm1", 3))
    (folder / "b.toml").write_text(guest("vm2", 3))
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:3:8000"}
    assert "b.toml" in scanned.refused
    (folder / "a.toml").unlink()
    scanned.scan()
    scanned.scan()
    assert known(directory) == {"vm2": "vsock:3:8000"}


def test_a_file_may_change_its_guest_and_a_guest_its_file(folder: Path, directory: Directory, scanned: GuestFolder) -> None:
    (folder / "a.toml").write_text(guest("vm1", 3))
    scanned.scan()
    (folder / "a.toml").write_text(guest("vm2", 3))
    (folder / "b.toml").write_text(guest("vm1", 4))
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:4:8000", "vm2": "vsock:3:8000"}
    (folder / "a.toml").rename(folder / "c.toml")
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:4:8000", "vm2": "vsock:3:8000"}


def test_a_folder_that_is_gone_keeps_its_guests(folder: Path, directory: Directory, scanned: GuestFolder) -> None:
    (folder / "a.toml").write_text(guest("vm1", 3))
    scanned.scan()
    shutil.rmtree(folder)
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:3:8000"}
    assert "cannot be read" in scanned.refused[""]
    assert scanned.state == SourceState(readable=False, refused=0)


def test_a_named_pipe_and_a_folder_are_refused_and_nothing_waits_for_them(
    folder: Path, directory: Directory, scanned: GuestFolder
) -> None:
    os.mkfifo(folder / "pipe.toml")
    (folder / "dir.toml").mkdir()
    (folder / "lost.toml").symlink_to("/no/such/file")
    (folder / "a.toml").write_text(guest("vm1", 3))
    scanned.scan()
    assert known(directory) == {"vm1": "vsock:3:8000"}
    assert set(scanned.refused) == {"pipe.toml", "dir.toml", "lost.toml"}


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.tuples(st.sampled_from("123"), st.integers(3, 5), st.booleans())), max_size=6
    )
)
def test_whatever_the_files_say_one_guest_never_has_anothers_address_and_unclaimed_conflicts_settle(
    versions: list[dict[str, tuple[str, int, bool]]],
) -> None:
    directory = Directory()
    folder = GuestFolder(Path("/guests.d"), directory, allow_plaintext=False)
    for version in versions:
        found: dict[str, Found] = {
            name: GuestEntry(f"vm{guest_id}", VsockAddress(cid, 1), running=running, source=name)
            for name, (guest_id, cid, running) in version.items()
        }
        found["x"] = SettingsError("wrong")
        for _ in range(4):
            folder.apply(found)
        running = [entry.address for entry in directory.after() if entry.running]
        assert len(running) == len(set(running))
        entries = {entry.source: entry for entry in directory.after()}
        for name, what in found.items():
            assert entries.get(name) == what or name in folder.refused
        assert set(entries) <= set(found)


def test_ten_thousand_guests_that_each_want_the_address_of_the_next_are_refused_in_seconds() -> None:
    def version(shift: int) -> dict[str, Found]:
        return {f"{number}.toml": GuestEntry(f"vm{number}", VsockAddress(3 + number + shift, 1)) for number in range(FILES_LIMIT)}

    folder = GuestFolder(Path("/guests.d"), Directory(), allow_plaintext=False)
    folder.apply(version(0))
    started = time.monotonic()
    folder.apply(version(1) | {f"{FILES_LIMIT - 1}.toml": SettingsError("wrong")})
    assert len(folder.refused) == FILES_LIMIT
    # Judging all of them again for each that is refused takes minutes.
    assert time.monotonic() - started < 60


@pytest.fixture
async def watched(scanned: GuestFolder) -> AsyncIterator[GuestFolder]:
    await scanned.start()
    yield scanned
    await scanned.close()


@pytest.mark.usefixtures("watched")
async def test_changes_are_seen_by_themselves(folder: Path, directory: Directory) -> None:
    told: asyncio.Queue[tuple[GuestEntry | None, GuestEntry | None]] = asyncio.Queue()
    directory.subscribe(lambda before, after: told.put_nowait((before, after)))
    names = [f"{number}.toml" for number in range(3)]
    random.shuffle(names)
    for name in names:
        # As a tool writes a file: beside it, then renamed.
        (folder / f".{name}.new").write_text(guest(f"vm{name[0]}", 3 + int(name[0])))
        (folder / f".{name}.new").rename(folder / name)
        before, after = await asyncio.wait_for(told.get(), 20)
        assert before is None
        assert after is not None
        assert after.id == f"vm{name[0]}"
    (folder / "1.toml").unlink()
    before, after = await asyncio.wait_for(told.get(), 20)
    assert after is None
    assert before is not None
    assert before.id == "vm1"
