"""Fixtures of the policy's tests."""

from __future__ import annotations

from tests.proxy.conftest import sockets

__all__ = ["sockets"]
