"""Builds /sys trees as the kernel lays them out: device folders elsewhere, links under bus/pci/devices."""

from __future__ import annotations

from pathlib import Path


class SysTree:
    """A /sys tree under `root` that grows by PCI devices and kernel modules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices = root / "bus/pci/devices"
        self.devices.mkdir(parents=True)

    def add(
        self,
        address: str,
        *,
        class_code: int = 0x030200,
        vendor: int = 0x10DE,
        device: int | None = 0x2335,
        driver: str | None = None,
        physfn: str | None = None,
    ) -> Path:
        """Plug a device in; returns its folder."""
        folder = self.root / "devices/pci" / address
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"0x{class_code:06x}\n")
        (folder / "vendor").write_text(f"0x{vendor:04x}\n")
        if device is not None:
            (folder / "device").write_text(f"0x{device:04x}\n")
        # Reading config space is not the inventory's business: a folder in its place makes any such read fail.
        (folder / "config").mkdir()
        if driver is not None:
            self.bind(address, driver)
        if physfn is not None:
            (folder / "physfn").symlink_to(f"../{physfn}")
        (self.devices / address).symlink_to(f"../../../devices/pci/{address}")
        return folder

    def bind(self, address: str, driver: str) -> None:
        """Bind the device to `driver` instead of what holds it."""
        target = self.root / "bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        link = self.root / "devices/pci" / address / "driver"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../../../bus/pci/drivers/{driver}")

    def load_module(self, name: str = "nvidia") -> None:
        """Load a kernel module."""
        (self.root / "module" / name).mkdir(parents=True)

    def unload_module(self, name: str = "nvidia") -> None:
        """Unload it."""
        (self.root / "module" / name).rmdir()
