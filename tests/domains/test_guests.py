"""From libvirt's domains to guests: which become one, under which id, and who comes first."""

from __future__ import annotations

import logging

import pytest

from guest_transport.addresses import UnixAddress, VsockAddress
from tests.eventually import turns
from vmm_proxy.directory.directory import AlreadyKnownError, Directory, GuestEntry
from vmm_proxy.directory.libvirt.guests import LibvirtGuests
from vmm_proxy.directory.libvirt.report import Domain

ONE = "11111111-1111-1111-1111-111111111111"
TWO = "22222222-2222-2222-2222-222222222222"


def known(directory: Directory) -> dict[str, str]:
    return {entry.id: str(entry.address) for entry in directory.after()}


@pytest.fixture
def directory() -> Directory:
    return Directory()


@pytest.fixture
def guests(directory: Directory) -> LibvirtGuests:
    return LibvirtGuests(directory, port=8000)


async def turn() -> None:
    """Let what was scheduled for the next turn of the loop happen."""
    await turns(3)


def test_a_domain_becomes_a_guest_by_its_uuid(directory: Directory, guests: LibvirtGuests) -> None:
    guests.apply([Domain(ONE, "web", 42, ("0000:3b:00.0",)), Domain(TWO, "no vsock")])
    (entry,) = directory.after()
    assert (entry.id, entry.address, entry.labels) == (ONE, VsockAddress(42, 8000), {"name": "web"})
    assert (entry.gpus, entry.running, entry.source) == (("0000:3b:00.0",), True, "libvirt")
    assert guests.found.refused == {}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb\r\x1b[31m", "a\\nb\\r\\x1b[31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("<script>&", "<script>&"),
        ("é" * 300, "é" * 128),
        ("x" + "é" * 300, "x" + "é" * 127),
        ("", ""),
    ],
)
def test_a_name_is_a_printable_label_of_bounded_length(
    directory: Directory, guests: LibvirtGuests, name: str, shown: str
) -> None:
    guests.apply([Domain(ONE, name, 42)])
    (entry,) = directory.after()
    assert entry.labels == {"name": shown}


@pytest.mark.parametrize(
    ("domain", "reason"),
    [
        (Domain(ONE, "n", 1), "CID 1 is no guest's"),
        (Domain(ONE, "n", 2), "CID 2 is no guest's"),
        (Domain("../etc", "n", 3), "UUID must be"),
        (Domain("..", "n", 3), "UUID must be"),
        (Domain(ONE, "n", 3, ("nonsense",)), "no PCI address"),
        (Domain(ONE, "n", 3, tuple(f"0000:{bus:02x}:00.0" for bus in range(65))), "at most 64"),
        (Domain(ONE, "n", problem="its XML is refused: has a DOCTYPE"), "DOCTYPE"),
    ],
)
def test_a_refused_domain_is_no_guest_and_costs_no_other_its_place(
    directory: Directory, guests: LibvirtGuests, domain: Domain, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        guests.apply([domain, Domain(TWO, "other", 43)])
    assert known(directory) == {TWO: "vsock:43:8000"}
    assert reason in guests.found.refused[domain.uuid]
    assert sum(domain.uuid in message for message in caplog.messages) == 1, "said once, not at every list"


def test_a_domain_that_is_refused_now_loses_the_entry_whose_cid_may_be_anothers(
    directory: Directory, guests: LibvirtGuests
) -> None:
    guests.apply([Domain(ONE, "one", 42)])
    guests.apply([Domain(ONE, "one", problem="its XML is refused: has a DOCTYPE"), Domain(TWO, "two", 42)])
    assert known(directory) == {TWO: "vsock:42:8000"}


def test_a_domain_that_stops_is_gone_and_one_that_restarts_has_its_new_cid(directory: Directory, guests: LibvirtGuests) -> None:
    guests.apply([Domain(ONE, "one", 42), Domain(TWO, "two", 43)])
    guests.apply([Domain(TWO, "two", 42)])
    assert known(directory) == {TWO: "vsock:42:8000"}
    guests.apply([])
    assert known(directory) == {}


def test_two_domains_may_swap_their_cids(directory: Directory, guests: LibvirtGuests) -> None:
    guests.apply([Domain(ONE, "one", 42), Domain(TWO, "two", 43)])
    guests.apply([Domain(ONE, "one", 43), Domain(TWO, "two", 42)])
    assert known(directory) == {ONE: "vsock:43:8000", TWO: "vsock:42:8000"}
    assert guests.found.refused == {}


def test_a_changed_label_or_card_replaces_the_entry_in_place(directory: Directory, guests: LibvirtGuests) -> None:
    guests.apply([Domain(ONE, "one", 42)])
    changes: list[tuple[GuestEntry | None, GuestEntry | None]] = []
    directory.subscribe(lambda before, after: changes.append((before, after)))
    guests.apply([Domain(ONE, "one", 42)])
    assert changes == [], "the same list changes nothing"
    guests.apply([Domain(ONE, "one", 42, ("0000:3b:00.0",))])
    ((before, after),) = changes
    assert before is not None
    assert after is not None
    assert (before.gpus, after.gpus) == ((), ("0000:3b:00.0",))


def test_the_second_of_two_domains_with_one_cid_is_refused_until_the_first_is_gone(
    directory: Directory, guests: LibvirtGuests
) -> None:
    guests.apply([Domain(ONE, "one", 42)])
    guests.apply([Domain(TWO, "two", 42), Domain(ONE, "one", 42)])
    assert known(directory) == {ONE: "vsock:42:8000"}
    assert "belongs to the running guest" in guests.found.refused[TWO]
    assert guests.found.out_of_reach == 1
    guests.apply([Domain(TWO, "two", 42)])
    assert known(directory) == {TWO: "vsock:42:8000"}


@pytest.mark.parametrize("first", ["written", "found"])
@pytest.mark.parametrize(
    "written",
    [GuestEntry(ONE, UnixAddress("/vm1"), source="vm1.toml"), GuestEntry("vm1", VsockAddress(42, 8000), source="vm1.toml")],
)
async def test_a_written_guest_comes_before_a_found_one_whichever_came_first(
    directory: Directory, guests: LibvirtGuests, first: str, written: GuestEntry, caplog: pytest.LogCaptureFixture
) -> None:
    domains = [Domain(ONE, "one", 42), Domain(TWO, "two", 43)]
    if first == "found":
        guests.apply(domains)
    directory.add(written)
    guests.apply(domains)
    await turn()
    assert known(directory) == {written.id: str(written.address), TWO: "vsock:43:8000"}
    assert list(guests.found.refused) == [ONE]
    directory.remove(written.id)
    await turn()
    assert known(directory) == {ONE: "vsock:42:8000", TWO: "vsock:43:8000"}, "it is back without waiting for libvirt"
    assert guests.found.refused == {}


async def test_a_written_guest_that_moves_to_a_found_ones_address_gets_it(directory: Directory, guests: LibvirtGuests) -> None:
    guests.apply([Domain(ONE, "one", 42)])
    directory.add(GuestEntry("vm1", UnixAddress("/vm1")))
    directory.replace(GuestEntry("vm1", VsockAddress(42, 8000)))
    await turn()
    assert known(directory) == {"vm1": "vsock:42:8000"}
    directory.replace(GuestEntry("vm1", VsockAddress(42, 8000), running=False))
    await turn()
    assert known(directory) == {ONE: "vsock:42:8000", "vm1": "vsock:42:8000"}, "a stopped guest holds no address"


def test_a_found_guest_never_takes_the_place_of_another_found_one(directory: Directory) -> None:
    directory.add(GuestEntry(ONE, VsockAddress(42, 8000), yields=True))
    with pytest.raises(AlreadyKnownError):
        directory.add(GuestEntry(ONE, VsockAddress(43, 8000), yields=True))


def test_a_written_twin_is_no_warning_and_a_taken_address_is_one(
    directory: Directory, guests: LibvirtGuests, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    directory.add(GuestEntry(ONE, UnixAddress("/vm1"), source="vm1.toml"))
    directory.add(GuestEntry("vm2", VsockAddress(43, 8000)))
    guests.apply([Domain(ONE, "one", 42), Domain(TWO, "two", 43)])
    levels = {record.levelname for record in caplog.records if ONE in record.getMessage()}
    assert levels == {"INFO"}
    assert {record.levelname for record in caplog.records if TWO in record.getMessage()} == {"WARNING"}


def test_a_domain_that_somebody_wrote_down_is_not_counted_among_those_that_nobody_reaches(
    directory: Directory, guests: LibvirtGuests
) -> None:
    directory.add(GuestEntry(ONE, UnixAddress("/vm1"), source="vm1.toml"))
    guests.apply([Domain(ONE, "one", 42), Domain(TWO, "two", 2)])
    assert sorted(guests.found.refused) == sorted([ONE, TWO])
    assert guests.found.out_of_reach == 1
