"""What the agent's start does not load: every millisecond of it is one in which no call is answered."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("entry", "late"),
    [
        ("guest_service.app", ["starlette", "uvicorn", "jinja2", "psutil", "grpc_reflection.v1alpha._base"]),
        ("guest_service.http.server", ["jinja2"]),
        ("vmm_proxy.app", ["jinja2", "grpc_reflection.v1alpha._base"]),
    ],
)
def test_what_few_need_is_not_loaded_at_the_start(entry: str, late: list[str]) -> None:
    code = f"import sys, {entry}; print([name for name in {late!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "[]\n"
