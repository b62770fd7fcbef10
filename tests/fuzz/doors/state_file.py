"""The file of registered guests: what a crash, an editor or a full disk left of it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from guest_transport.addresses import UnixAddress
from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape
from tests.fuzz.door import Door, one_line
from vmm_proxy.directory.directory import Directory, DirectoryError, GuestEntry
from vmm_proxy.directory.registered import RegisteredGuests

MESSAGE_LIMIT = 1000


def check(data: bytes) -> None:
    """Every guest of the file, and the same again after the next change and restart; or SettingsError, and the file as it was."""
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        file = Path(folder) / "registered.json"
        file.write_bytes(data)
        directory = Directory()
        try:
            kept = _loaded(file, directory)
        except SettingsError as error:
            one_line(escape(str(error)), MESSAGE_LIMIT)
            assert str(file) in str(error), f"the file is not named: {error}"
            assert file.read_bytes() == data, "a file that was refused was changed"
            return
        guests = {entry.id: entry for entry in directory.after()}
        assert len(guests) == len(json.loads(data)["guests"]), "a guest was forgotten"
        added = GuestEntry("one-more", UnixAddress("/one-more"))
        try:
            asyncio.run(kept.register(added))
        except DirectoryError:
            assert "one-more" in guests or any(str(entry.address) == "unix:/one-more" for entry in guests.values())
            return
        again = Directory()
        _loaded(file, again)
        for entry in again.after():
            before = guests.get(entry.id)
            assert entry.address == (before.address if before else added.address)
            assert before is None or (entry.labels, entry.running, entry.instance_id, entry.gpus) == (
                before.labels, before.running, before.instance_id, before.gpus,
            )  # fmt: skip
        assert {entry.id for entry in again.after()} == {*guests, "one-more"}


def _loaded(file: Path, directory: Directory) -> RegisteredGuests:
    registered = RegisteredGuests(file, directory, allow_plaintext=False)
    registered.load()
    return registered


_TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["", "vm-1", "one-more", "\ud800", "x" * 3000, "\x1b[2J", "../../etc/x"]))
_ADDRESSES = st.one_of(
    st.builds("unix:/{}".format, st.text("ab", max_size=2)), st.builds("vsock:{}:8000".format, st.integers(2, 9)), _TEXTS
)
_GUESTS = st.fixed_dictionaries(
    {"id": st.one_of(st.text("ab1-", min_size=1, max_size=3), _TEXTS), "address": _ADDRESSES},
    optional={
        "labels": st.dictionaries(st.one_of(st.sampled_from(["rack", "tier"]), _TEXTS), _TEXTS, max_size=2),
        "state": st.sampled_from(["running", "stopped", "gone"]),
        "instance_id": st.sampled_from(["", "00ff", "0", "zz", "AB" * 64, "ab" * 65]),
        "gpus": st.lists(st.sampled_from(["0000:3b:00.0", "3B:00.0", "", "x"]), max_size=2),
        "tls": st.sampled_from([None, {}, {"authorities": "/nowhere"}, {"x": 1}]),
        "extra": _TEXTS,
    },
)

STATE_FILE = Door(
    "state-file",
    check,
    st.one_of(
        st.lists(_GUESTS, max_size=4).map(lambda guests: json.dumps({"guests": guests}).encode()),
        st.lists(_GUESTS, max_size=2).map(lambda guests: json.dumps({"guests": guests}).encode()[:-3]),
    ),
    words=(
        b"{",
        b"}",
        b"[" * 3000,
        b'"guests"',
        b"null",
        b"\xff",
        b"\0",
        b"\\ud800",
        b"NaN",
        b'"id":"a"',
        b'"labels":{',
        b"1e999",
    ),
    examples=50,
)
