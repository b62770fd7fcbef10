"""Who the guest is: the identity file that its boot left, or else a name derived from the machine id.

Read once at start, and refused there when it is wrong: an agent that serves a half-read identity would be trusted for it. The machine id
itself never leaves the guest (machine-id(5) asks for that); HMAC-SHA256 keyed with it over an id of this application does, as
sd_id128_get_machine_app_specific(3) does it. Rejected: the raw machine id, and a random id (it would change with each start).
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import msgspec

from guest_api import guest_api_pb2
from guest_transport.errors import SettingsError
from guest_transport.settings.read import read_file
from guest_transport.settings.toml_text import load_toml

log = logging.getLogger(__name__)

# Any random UUID does; it must never change, or every guest gets a new name.
APPLICATION_ID = uuid.UUID("6f1d2f39-5c0b-4e0e-9a53-3f1e6ad6c7b2")
# A certificate chain and a TCB description take some 20 KiB; the reply limit is 1 MiB.
IDENTITY_LIMIT_BYTES = 256 * 1024
# SHA-512 is the longest id that anybody derives.
ID_LIMIT_BYTES = 64


class IdentityFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of the identity file; ids in hex, with or without 0x."""

    # Id of the application, hex.
    app_id: str = ""
    # Id of this instance, hex, which a proxy may pin; without one a keyed hash of the machine id.
    instance_id: str = ""
    # Id of the device, hex.
    device_id: str = ""
    # The application's certificate, PEM.
    app_cert: str = ""
    # JSON text of the measured boot; shown only with http.public_tcbinfo.
    tcb_info: str = ""


class Identity:
    """Answers Info; what it says stays the same while the agent runs."""

    def __init__(
        self,
        *,
        version: str,
        file: Path | None = None,
        machine_id: Path = Path("/etc/machine-id"),
    ) -> None:
        """Read `file`; raises SettingsError when it is missing or wrong."""
        found = read_identity(file) if file is not None else IdentityFile()
        where = str(file)
        self._info = guest_api_pb2.GuestInfo(
            version=version,
            app_id=_id_bytes(where, "app_id", found.app_id),
            instance_id=_id_bytes(where, "instance_id", found.instance_id) or read_machine_name(machine_id),
            device_id=_id_bytes(where, "device_id", found.device_id),
            app_cert=found.app_cert,
            tcb_info=found.tcb_info,
        )

    def info(self, *, show_tcb: bool) -> guest_api_pb2.GuestInfo:
        """Who the guest is, its measured boot only where the operator shows it; the caller gets a message of its own."""
        info = guest_api_pb2.GuestInfo()
        info.CopyFrom(self._info)
        if not show_tcb:
            info.ClearField("tcb_info")
        return info


def read_identity(file: Path) -> IdentityFile:
    """The identity in a TOML file, or in a JSON file when it is named *.json; raises SettingsError naming file and key."""
    data = read_file(file)
    if len(data) > IDENTITY_LIMIT_BYTES:
        raise SettingsError(f"{file}: larger than {IDENTITY_LIMIT_BYTES} bytes")
    form = "JSON" if file.suffix == ".json" else "TOML"
    tree: Any  # Any: what the file holds; its shape is checked below
    try:
        text = data.decode("utf-8")
        tree = json.loads(text) if form == "JSON" else load_toml(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: not {form}: {error}") from error
    try:
        found = msgspec.convert(tree, IdentityFile)
    except msgspec.ValidationError as error:
        raise SettingsError(
            f"{file}: {error}; allowed are app_id, instance_id, device_id, app_cert and tcb_info, all text"
        ) from error
    for key, value in msgspec.structs.asdict(found).items():
        # JSON can write half a character (\ud800), which no message of the contract can hold.
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise SettingsError(f"{file}: {key}: holds half of a UTF-16 pair, which is no text")
    return found


def _id_bytes(where: str, key: str, text: str) -> bytes:
    try:
        value = binascii.unhexlify(text.removeprefix("0x"))
    except ValueError as error:
        raise SettingsError(f"{where}: {key}: not hexadecimal: {error}") from error
    if len(value) > ID_LIMIT_BYTES:
        raise SettingsError(f"{where}: {key}: longer than {ID_LIMIT_BYTES} bytes")
    return value


def read_machine_name(machine_id: Path) -> bytes:
    """A name of this machine for this application; empty, and logged, when the machine has no id."""
    try:
        return machine_name(machine_id.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        log.warning("instance_id stays empty: no machine id: %s", error)
        return b""


def machine_name(text: str) -> bytes:
    """16 bytes from the text of /etc/machine-id; ValueError when it is none (first boot writes "uninitialized")."""
    key = uuid.UUID(hex=text.strip()).bytes
    digest = hmac.new(key, APPLICATION_ID.bytes, hashlib.sha256).digest()
    # The first half, with the version and variant bits of a random UUID: sd-id128 makes it so.
    return uuid.UUID(bytes=digest[:16], version=4).bytes
