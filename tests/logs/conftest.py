"""A folder whose path is short enough for a socket's name."""

from tests.proxy.conftest import sockets

__all__ = ["sockets"]
