"""What a PEM certificate says: from when to when it is valid, and whom it names.

CPython's own decoder reads it, the one behind SSLSocket.getpeercert(). It is private, because it exists for Python's tests, and has been
the same since 2.6; it reads a file, so it is given one in memory. Rejected: a library for X.509 as a new dependency for two dates, and a
parser of ASN.1 of our own.
"""

from __future__ import annotations

import _ssl
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_transport.settings.read import read_file

# What stands in between is base64, so that a begin without an end is not looked for through the whole file.
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]*+-----END CERTIFICATE-----")
# As access.grant writes them.
_KINDS = {"DNS": "dns", "URI": "uri", "email": "email", "IP Address": "ip"}


@dataclass(frozen=True, slots=True)
class Certificate:
    """Epoch seconds, and subject alternative names with their kind in front ("dns:proxy.example")."""

    subject: str
    valid_from: float
    valid_until: float
    names: tuple[str, ...]
    der: bytes


def read_certificates(path: Path) -> list[Certificate]:
    """The certificates in the PEM file at `path`, in order; raises SettingsError, and ValueError when one cannot be decoded. Blocks."""
    return [decode(block) for block in _BLOCK.findall(read_file(path))]


def decode(pem: bytes) -> Certificate:
    """One certificate; raises ValueError."""
    fd = os.memfd_create("certificate")
    try:
        os.write(fd, pem + b"\n")
        # Any: a private function without types.
        said = _ssl._test_decode_cert(f"/proc/self/fd/{fd}")  # type: ignore[attr-defined]
        return Certificate(
            subject=_subject(said.get("subject", ())),
            valid_from=ssl.cert_time_to_seconds(said["notBefore"]),
            valid_until=ssl.cert_time_to_seconds(said["notAfter"]),
            names=tuple(f"{_KINDS[kind]}:{value.strip()}" for kind, value in said.get("subjectAltName", ()) if kind in _KINDS),
            der=ssl.PEM_cert_to_DER_cert(pem.decode("ascii")),
        )
    except (ssl.SSLError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be decoded: {error}") from error
    finally:
        os.close(fd)


def _subject(parts: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Its common name, or whatever comes last; empty without any."""
    flat = [pair for part in parts for pair in part]
    return next((value for key, value in flat if key == "commonName"), flat[-1][1] if flat else "")
