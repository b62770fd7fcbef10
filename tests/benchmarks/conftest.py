"""A folder whose path is short enough for a socket's name."""

from tests.agent.conftest import short_path

__all__ = ["short_path"]
