"""The watch of tests/conftest.py sees what it is there for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blockbuster import BlockingError

from guest_service.inventory import read_inventory


async def test_product_code_that_reads_a_folder_on_the_loop_fails_its_test(tmp_path: Path) -> None:
    with pytest.raises(BlockingError, match=r"os\.listdir"):
        read_inventory(tmp_path)


async def test_the_same_code_in_a_thread_does_not(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    assert (await asyncio.to_thread(read_inventory, tmp_path)).cards == ()
