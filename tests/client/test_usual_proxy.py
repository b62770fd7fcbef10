"""Which socket of this host's proxy is asked where nobody says: the read-only one by who may open that one alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from guest_client.guestctl import proxies


@pytest.mark.parametrize(
    ("there", "asked"),
    [((), "first"), (("first",), "first"), (("read-only",), "read-only"), (("first", "read-only"), "first")],
)
def test_the_read_only_socket_is_asked_where_it_is_the_only_one_to_open(
    there: tuple[str, ...], asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in there:
        (tmp_path / name).touch()
    monkeypatch.setattr(proxies, "DEFAULT_PROXY", f"unix:{tmp_path}/first")
    monkeypatch.setattr(proxies, "READ_ONLY_PROXY", f"unix:{tmp_path}/read-only")
    assert proxies.usual_proxy() == f"unix:{tmp_path}/{asked}"
