"""What BoundedConnection needs of uvicorn's protocol that uvicorn promises to nobody: a release that renames it fails here, by name."""

from __future__ import annotations

import inspect

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

# Overridden or called by guest_transport.http.connections; pyproject.toml has the newest release that was tried.
METHODS = (
    "connection_made",
    "connection_lost",
    "data_received",
    "pause_writing",
    "resume_writing",
    "_unset_keepalive_if_required",
)
ATTRIBUTES = ("connections", "cycle", "transport", "conn")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_overridden_is_there(name: str) -> None:
    assert inspect.isfunction(getattr(H11Protocol, name, None))


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_is_read_is_set_at_the_start(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(H11Protocol.__init__)
