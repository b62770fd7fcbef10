"""What is read of a domain's XML, and what is refused: tenants choose parts of that text."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmm_proxy.directory.libvirt.domain_xml import DEPTH_LIMIT, XML_LIMIT_CHARACTERS, DomainFacts, DomainXmlError, read_domain
from vmm_proxy.directory.libvirt.host_cards import cards_among

HOSTDEV = """<hostdev mode='subsystem' type='pci' managed='yes'><driver name='vfio'/>
<source><address domain='0x{host[0]:04x}' bus='0x{host[1]:02x}' slot='0x00' function='0x{host[2]:x}'/></source>
<alias name='hostdev'/>{guest}</hostdev>"""


def domain(devices: str, before: str = "") -> str:
    return f"<domain type='kvm' id='7'><name>one</name>{before}<devices>{devices}</devices></domain>"


def vsock(cid: int | str, auto: str = "no") -> str:
    return f"<vsock model='virtio'><cid auto='{auto}' address='{cid}'/><alias name='vsock0'/></vsock>"


def hostdev(host: tuple[int, int, int], guest_bus: int | None = None) -> str:
    address = (
        "" if guest_bus is None else f"<address type='pci' domain='0x0000' bus='0x{guest_bus:02x}' slot='0x00' function='0x0'/>"
    )
    return HOSTDEV.format(host=host, guest=address)


@pytest.mark.parametrize("auto", ["yes", "no"])
def test_the_cid_of_a_live_domain_is_the_one_that_it_runs_with(auto: str) -> None:
    assert read_domain(domain(vsock(42, auto))) == DomainFacts(42, ())


@pytest.mark.parametrize("devices", ["", "<vsock model='virtio'><cid auto='yes'/></vsock>", "<vsock model='virtio'/>"])
def test_a_domain_without_a_vsock_or_not_given_a_cid_yet_has_none(devices: str) -> None:
    assert read_domain(domain(devices)).cid is None


def test_devices_come_in_the_order_of_their_addresses_in_the_guest_whatever_the_order_of_the_text() -> None:
    text = domain(
        hostdev((0, 0xC1, 0), 9) + hostdev((1, 0x3B, 7)) + hostdev((0, 0x3C, 0), 7) + hostdev((0, 0x9B, 0), 8) + vsock(3)
    )
    assert read_domain(text).host_pci == ("0000:3c:00.0", "0000:9b:00.0", "0000:c1:00.0", "0001:3b:00.7")


@pytest.mark.parametrize(
    "device",
    [
        "<hostdev mode='subsystem' type='usb'><source><address bus='1' device='3'/></source></hostdev>",
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='c2177883'/></source></hostdev>",
        "<interface type='hostdev'><source><address type='pci' bus='0x05' slot='0' function='0'/></source></interface>",
    ],
)
def test_what_is_no_pci_hostdev_is_no_card(device: str) -> None:
    assert read_domain(domain(device)).host_pci == ()


def test_metadata_with_devices_of_its_own_gives_a_domain_neither_cid_nor_cards() -> None:
    planted = f"<devices>{vsock(9)}{hostdev((0, 1, 0))}</devices>"
    metadata = f"<metadata><x:domain xmlns:x='urn:x'>{planted}</x:domain><y xmlns='urn:y'>{planted}</y></metadata>"
    assert read_domain(domain(vsock(42), metadata)) == DomainFacts(42, ())
    assert read_domain(domain("", metadata)) == DomainFacts(None, ())


BOMB = (
    "<!DOCTYPE domain [<!ENTITY a '"
    + "x" * 1000
    + "'>"
    + "".join(f"<!ENTITY {after} '{f'&{before};' * 10}'>" for before, after in zip("abcdefgh", "bcdefghi", strict=True))
    + "]>"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB + domain("", "<description>&i;</description>"), "DOCTYPE"),
        ("<!DOCTYPE domain SYSTEM 'file:///etc/passwd'>" + domain(vsock(3)), "DOCTYPE"),
        ("<!DOCTYPE domain [<!ENTITY c SYSTEM 'file:///etc/hostname'>]>" + domain(vsock("&c;")), "DOCTYPE"),
        (domain(vsock(3), "<description>" + "x" * XML_LIMIT_CHARACTERS + "</description>"), "longer than"),
        (domain(vsock(3), "<a>" * DEPTH_LIMIT + "</a>" * DEPTH_LIMIT), "deeper than"),
        ("<a>" * 100_000, "no <domain>"),
        ("<network/>", "no <domain>"),
        ("", "not XML"),
        (domain(vsock(3))[:-3], "not XML"),
        (domain(vsock("three")), "address is no number"),
        (domain(vsock("-1")), "address is no number"),
        (domain(vsock(0xFFFFFFFF)), "address is more than"),
        (domain(vsock("9" * 11)), "address is no number"),
        (domain("<hostdev type='pci'><source><address bus='0x100'/></source></hostdev>"), "bus is more than"),
        (domain("<hostdev type='pci'><source><address slot='0x20'/></source></hostdev>"), "slot is more than"),
        (domain("<hostdev type='pci'><source><address function='../..'/></source></hostdev>"), "function is no number"),
    ],
)
def test_hostile_xml_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(DomainXmlError, match=reason):
        read_domain(text)


@given(st.text(max_size=200) | st.text(max_size=100).map(lambda text: domain(vsock(3), text)))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(DomainXmlError):
        assert read_domain(text) == DomainFacts(3, ())


def test_a_device_that_is_known_to_be_no_display_device_is_no_card_and_an_unknown_one_stays(tmp_path: Path) -> None:
    for address, class_code in (("0000:3b:00.0", "0x030200"), ("0000:3c:00.0", "0x068000"), ("0000:3d:00.0", "nonsense")):
        device = tmp_path / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "class").write_text(class_code + "\n")
    cards = cards_among(["0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0", "0000:3e:00.0"], tmp_path)
    assert cards == ("0000:3b:00.0", "0000:3d:00.0", "0000:3e:00.0")


def test_another_maker_s_card_is_not_counted_for_the_nvidia_driver_of_the_guest_would_never_show_it(tmp_path: Path) -> None:
    for address, vendor in (("0000:3b:00.0", "0x10de"), ("0000:3c:00.0", "0x1002"), ("0000:3d:00.0", "")):
        device = tmp_path / "bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "class").write_text("0x030200\n")
        (device / "vendor").write_text(f"{vendor}\n")
    assert cards_among(["0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0"], tmp_path) == ("0000:3b:00.0", "0000:3d:00.0")
