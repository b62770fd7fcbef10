"""Addresses: what parses, what is refused, and that a parsed one survives its own text."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_transport.addresses import (
    Address,
    AddressError,
    HvsockAddress,
    TcpAddress,
    UnixAddress,
    VsockAddress,
    parse_address,
    require_dialable,
)

_names = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,20})(\.[a-z0-9_-]{1,20}){0,3}\.?", fullmatch=True)
_hosts = st.one_of(
    _names.filter(lambda name: not all(c in "0123456789." for c in name)),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.sampled_from(["fe80::1%eth0", "fe80::1%3"]),
)
_paths = st.lists(
    st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/"), min_size=1, max_size=8).filter(
        lambda p: p != "."
    ),
    min_size=1,
    max_size=3,
).map(lambda parts: "/" + "/".join(parts))
_vsock_ports = st.integers(1, 0xFFFFFFFE)
_addresses: st.SearchStrategy[Address] = st.one_of(
    st.builds(TcpAddress, _hosts, st.integers(0, 65535)),
    st.builds(UnixAddress, _paths),
    st.builds(VsockAddress, st.integers(0, 0xFFFFFFFF), _vsock_ports),
    st.builds(HvsockAddress, _paths, _vsock_ports),
)


@given(_addresses)
def test_an_address_survives_its_own_text(address: Address) -> None:
    assert parse_address(str(address)) == address


@given(st.one_of(st.text(), st.text("unixvsockhvsock:/[]0123456789.%-\0\n ")))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    refusal = ""
    try:
        address = parse_address(text)
        assert parse_address(str(address)) == address
    except AddressError as error:
        refusal = str(error)
    assert refusal.isprintable()
    assert len(refusal) < 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no port"),
        ("localhost", "no port"),
        ("localhost:", "port must be from 0 to 65535"),
        ("localhost:99999", "port must be from 0 to 65535"),
        ("localhost:-1", "port must be"),
        ("localhost: 80", "port must be"),
        ("localhost:٣", "port must be"),
        (":80", "no host"),
        ("::1:80", "needs brackets"),
        ("[::1]", "port must be"),
        ("[::1%]:80", "IPv6"),
        ("[fe80::1%a b]:80", "scope"),
        ("1.2.3:80", "no IPv4 address"),
        ("http://x:80", "no other scheme"),
        ("dns:x:80", "no other scheme"),
        ("unix:relative", "absolute"),
        ("unix:/", "no file"),
        ("unix:/a\nb", "printable"),
        ("unix:/a\0b", "printable"),
        ("unix:/\udcff", "printable"),
        ("unix:/" + "ä" * 60, "at most 107 bytes"),
        ("vsock:2", "port must be"),
        ("vsock::8000", "CID"),
        ("vsock:guest:8000", "CID"),
        ("vsock:4294967296:8000", "CID"),
        ("vsock:3:0", "port must be from 1"),
        ("vsock:3:4294967295", "port must be"),
        ("hvsock:/a", "absolute"),
        ("hvsock:a:1", "absolute"),
        ("hvsock:/a:x", "port must be"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=r"^'.* is no address: ") as refused:
        parse_address(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("vsock:host:8000", "vsock:2:8000"),
        ("vsock:any:8000", "vsock:4294967295:08000"),
        ("unix:///run//a/./b", "unix:/run/a/b"),
        ("LocalHost:80", "localhost:080"),
        ("[0:0::1]:80", "[::1]:80"),
        ("hvsock://run/v.sock:5", "hvsock:/run/v.sock:5"),
    ],
)
def test_two_texts_for_one_address_are_equal(one: str, other: str) -> None:
    assert parse_address(one) == parse_address(other)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "LOCALHOST.:1"])
def test_loopback_is_what_only_this_machine_can_reach(text: str) -> None:
    address = parse_address(text)
    assert isinstance(address, TcpAddress)
    assert address.loopback


@given(st.one_of(st.ip_addresses().filter(lambda ip: not ip.is_loopback)))
def test_no_other_address_counts_as_loopback(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert not TcpAddress(str(ip), 1).loopback


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "localhost.example.com:1", "0x7f.1:1"])
def test_a_name_that_only_looks_local_is_not_loopback(text: str) -> None:
    address = parse_address(text)
    assert isinstance(address, TcpAddress)
    assert not address.loopback


@pytest.mark.parametrize("text", ["localhost:0", "vsock:any:8000", "vsock:0:8000"])
def test_an_address_for_listening_only_is_not_dialable(text: str) -> None:
    with pytest.raises(AddressError, match="cannot be dialled"):
        require_dialable(parse_address(text))


@pytest.mark.parametrize("text", ["localhost:1", "vsock:3:8000", "vsock:local:8000", "unix:/a", "hvsock:/a:1"])
def test_every_other_address_is_dialable(text: str) -> None:
    address = parse_address(text)
    assert require_dialable(address) is address
