"""Certificates of the tests' own authorities, written to files as an operator has them."""

from __future__ import annotations

from pathlib import Path

import trustme


def write(folder: Path, name: str, authority: trustme.CA, *names: str) -> tuple[Path, Path]:
    """Certificate chain and key for `names`, as `name`.crt and `name`.key; files that are there are replaced as a renewal does."""
    issued = authority.issue_cert(*names)
    chain, key = folder / f"{name}.crt", folder / f"{name}.key"
    for path, pems in ((chain, issued.cert_chain_pems), (key, [issued.private_key_pem])):
        fresh = path.with_suffix(path.suffix + ".new")
        fresh.write_bytes(b"".join(pem.bytes() for pem in pems))
        fresh.replace(path)
    return chain, key


def write_authority(folder: Path, name: str, authority: trustme.CA) -> Path:
    path = folder / name
    authority.cert_pem.write_to_path(str(path))
    return path
