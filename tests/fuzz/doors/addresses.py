"""The address parser, as flags and files reach it: undecodable bytes come as lone surrogates, as Python gives them in argv."""

from __future__ import annotations

import re

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
from tests.fuzz.door import Door, one_line

# The text is quoted up to 120 characters, of which ascii() may make ten each (\U0010ffff); the rest is the syntax.
MESSAGE_LIMIT = 1600
SYNTAX = re.compile(
    r"unix:/.*|hvsock:/.*:[0-9]{1,10}|vsock:([0-9]{1,10}|any|host|local):[0-9]{1,10}|(\[[0-9A-Fa-f:.]+(%[\w.-]{1,15})?\]|[\w.-]+):[0-9]{1,10}",
    re.DOTALL | re.ASCII,
)


def check(data: bytes) -> None:
    """One of the four kinds within its limits, the same again from its own text; or AddressError in one line."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        address = parse_address(text)
    except AddressError as error:
        one_line(str(error), MESSAGE_LIMIT)
        return
    assert SYNTAX.fullmatch(text), f"{text!r} has none of the documented forms"
    assert parse_address(str(address)) == address
    one_line(str(address), 400)
    _within_limits(address)
    try:
        assert require_dialable(address) is address
    except AddressError as error:
        one_line(str(error), MESSAGE_LIMIT)


def _within_limits(address: Address) -> None:
    match address:
        case UnixAddress(path) | HvsockAddress(path=path):
            assert path.startswith("/"), path
            assert len(path.encode()) <= 107, path
            if isinstance(address, UnixAddress):
                assert address.grpc_target.isascii(), address.grpc_target
                assert not set(address.grpc_target[5:]) & set("?# "), address.grpc_target
        case TcpAddress(host, port):
            assert 0 <= port <= 65535, port
            assert host, "no host"
            assert re.fullmatch(r"(dns|ipv4|ipv6):\S+:[0-9]+", address.grpc_target), address.grpc_target
            assert isinstance(address.loopback, bool)
    if isinstance(address, HvsockAddress | VsockAddress):
        assert 1 <= address.port <= 0xFFFFFFFE, address.port
    if isinstance(address, VsockAddress):
        assert 0 <= address.cid <= 0xFFFFFFFF, address.cid


_NUMBERS = st.one_of(st.integers(-1, 2**33), st.sampled_from([0, 1, 2, 3, 65535, 65536, 0xFFFFFFFE, 0xFFFFFFFF])).map(str)
_PATHS = st.one_of(st.text("/.ab% ?#é\u202e\0", max_size=120).map("/".__add__), st.text(max_size=20))
_HOSTS = st.one_of(
    st.text("ab0-9._-", max_size=70),
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip}%eth0]"),
    st.ip_addresses(v=6).map(lambda ip: f"[{ip}]"),
    st.text(max_size=10),
)
_TEXTS = st.one_of(
    st.builds("unix:{}".format, _PATHS),
    st.builds("hvsock:{}:{}".format, _PATHS, _NUMBERS),
    st.builds("vsock:{}:{}".format, st.one_of(_NUMBERS, st.sampled_from(["any", "host", "local", "ANY", ""])), _NUMBERS),
    st.builds("{}:{}".format, _HOSTS, _NUMBERS),
)

ADDRESS = Door(
    "address",
    check,
    _TEXTS.map(lambda text: text.encode("utf-8", "replace")),
    words=(
        b"unix:",
        b"vsock:",
        b"hvsock:",
        b"any",
        b"host",
        b"[::1]",
        b"%eth0",
        b"//",
        b"/./",
        b":0",
        b":65536",
        b"\0",
        "\u0663".encode(),
    ),
    examples=150,
    guided=True,
)
