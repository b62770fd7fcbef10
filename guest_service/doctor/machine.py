"""The guest that is looked at: its configuration as far as it can be read, and the places that checks look in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guest_service.config import Flags, GuestConfig, load_config
from guest_service.inventory import Inventory
from guest_service.simulator import Rack, RackError, load_rack
from guest_service.telemetry.build import simulated_facts
from guest_service.telemetry.gate import CardFacts, facts_of
from guest_transport.errors import SettingsError

# Where the unit's own ExecStart= looks (deploy/systemd/guest-service.service).
CONFIG_FILE = Path("/etc/guest-service/config.toml")
UNIT = "guest-service"


@dataclass(frozen=True, slots=True)
class Guest:
    """`refused` says why the configuration is refused, empty when it is not; then `config` has the defaults. `file` None: defaults too."""

    config: GuestConfig
    file: Path | None = None
    refused: str = ""
    dev: Path = Path("/dev")
    machine_id: Path = Path("/etc/machine-id")
    # As the unit of the boot gate names them (deploy/systemd/guest-service-boot-gate.service).
    gate_policy: Path = Path("/etc/guest-service/boot-gate.toml")
    gate_unit_wanted: Path = Path("/etc/systemd/system/multi-user.target.wants/guest-service-boot-gate.service")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def sysfs(self) -> Path:
        """Root of sysfs."""
        return Path(self.config.host.sysfs_root)

    def rack(self) -> Rack | None:
        """The rack that is shown instead of cards; None for a real machine. Raises RackError."""
        return None if self.config.gpu.simulate is None else load_rack(self.config.gpu.simulate)

    def facts(self) -> CardFacts:
        """What the agent's gate would ask of the machine, or of its rack; raises RackError."""
        rack = self.rack()
        return facts_of(self.sysfs) if rack is None else simulated_facts(rack)

    def inventory(self) -> Inventory:
        """The cards; raises InventoryError, and RackError for a rack that is none. Blocks."""
        return self.facts().inventory()


def find_guest(file: Path | None) -> Guest:
    """The guest of the configuration in `file`; without one, of the unit's file if it is there, else of the defaults."""
    if file is None and CONFIG_FILE.exists():
        file = CONFIG_FILE
    try:
        config = load_config(file, Flags())
        if config.gpu.simulate is not None:
            load_rack(config.gpu.simulate)
    except RackError as error:
        return Guest(GuestConfig(), file, refused=f"gpu.simulate: {error}")
    except SettingsError as error:
        return Guest(GuestConfig(), file, refused=str(error))
    return Guest(config, file)
