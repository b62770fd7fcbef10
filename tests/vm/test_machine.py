"""The machines of these tests themselves: one that fails is a failure, and none is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.vm.machine import END_LIMIT_SECONDS, require_parts, virtual_machine

pytestmark = [pytest.mark.vm, pytest.mark.timeout(END_LIMIT_SECONDS + 30)]


async def test_a_machine_whose_program_dies_is_a_failure_although_qemu_calls_it_a_success(tmp_path: Path) -> None:
    async with virtual_machine(require_parts(), tmp_path, "tests.vm.inside.no_such_scenario") as machine:
        with pytest.raises(AssertionError, match="ended in another way"):
            await machine.results()
        assert machine.process.returncode == 0


async def test_a_machine_that_its_test_leaves_is_gone(tmp_path: Path) -> None:
    async with virtual_machine(require_parts(), tmp_path, "tests.vm.inside.loopback") as machine:
        pid = machine.process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
