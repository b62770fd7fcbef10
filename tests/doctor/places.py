"""A guest and a host to look at: a configuration in a folder of its own, changed table by table."""

from __future__ import annotations

from pathlib import Path

from tests.inventory.sys_tree import SysTree

CARD, OTHER = "0000:3b:00.0", "0000:5e:00.0"


class GuestPlace:
    """A guest's configuration with a /sys tree of its own; `tables` are whole TOML tables by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sys = SysTree(folder / "sys")
        self.socket = folder / "g"
        self.tables: dict[str, str] = {
            "grpc": f'listen = ["unix:{self.socket}"]',
            "http": 'listen = "off"',
            "containers": 'socket = "off"',
        }

    def card(self, driver: str | None = "nvidia", address: str = CARD) -> None:
        self.sys.add(address, driver=driver)

    def write(self) -> Path:
        self.tables.setdefault("host", f'sysfs_root = "{self.sys.root}"')
        path = self.folder / "agent.toml"
        path.write_text("".join(f"[{name}]\n{text}\n" for name, text in self.tables.items()))
        return path


class HostPlace:
    """A host's configuration; `tables` are whole TOML tables by name, `guests` the [[guest]] tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "p"
        self.tables = {"grpc": f'listen = ["unix:{self.socket}"]', "http": 'listen = "off"'}
        self.guests: list[str] = []

    def guest(self, guest_id: str, address: str, more: str = "") -> None:
        self.guests.append(f'[[guest]]\nid = "{guest_id}"\naddress = "{address}"\n{more}\n')

    def write(self) -> Path:
        path = self.folder / "proxy.toml"
        path.write_text("".join(f"[{name}]\n{text}\n" for name, text in self.tables.items()) + "".join(self.guests))
        return path
