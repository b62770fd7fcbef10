"""The watch of tests/conftest.py sees what it is there for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blockbuster import BlockingError

from guest_service.inventory import read_inventory


async def test_product_code_that_reads_sysfs_on_the_loop_fails_its_test(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    for name, text in (("class", "0x030200"), ("vendor", "0x10de")):
        (device / name).write_text(f"{text}\n")
    # The folder itself, or from Python 3.13 on, which reads folders by a call that is not watched, the first file in it.
    with pytest.raises(BlockingError, match="Blocking call to "):
        read_inventory(tmp_path)


async def test_the_same_code_in_a_thread_does_not(tmp_path: Path) -> None:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    assert (await asyncio.to_thread(read_inventory, tmp_path)).cards == ()
