"""deploy/examples/mutual-tls, followed from its first line to its last: openssl, agent, proxy, guestctl, at the addresses that it names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.examples.readme import EXAMPLES, commands, copied, moved, must, typed
from tests.examples.running import network, started

PAGE = EXAMPLES / "mutual-tls/README.md"
SCRIPT = EXAMPLES / "mutual-tls/make-certificates.sh"
pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="missing: openssl (Debian package openssl)"),
    pytest.mark.timeout(180),
]


@pytest.fixture
def office(tmp_path: Path) -> Path:
    """Where the authorities are, with every certificate of the page made."""
    folder = tmp_path / "office"
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    for line in commands(PAGE, "1."):
        must(line, folder)
    return folder


@dataclass(frozen=True)
class Running:
    """The example, running: where to ask from, and what stands before a command there."""

    office: Path
    root: Path
    prefix: tuple[str, ...]

    def ask(self, line: str) -> subprocess.CompletedProcess[str]:
        return typed(moved(line, self.root), self.office, prefix=self.prefix)


def install(heading: str, office: Path, folder: Path, root: Path) -> None:
    """Follow a step on one machine: files named there are copied from the office, the rest is the example's."""
    copied("mutual-tls", folder, root)
    for line in commands(PAGE, heading):
        if line.startswith("systemctl "):
            continue
        for name in re.findall(r"[\w-]+\.(?:crt|key|ca)\b", line):
            shutil.copy(office / name, folder)
        must(moved(line.replace(" --group=vmm-proxy", ""), root), folder)


@pytest.fixture
def running(office: Path, tmp_path: Path) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="gs-") as short, network("10.0.0.1/32", "10.0.0.7/32") as prefix:
        root = Path(short)
        for place in ("run/guest-service", "run/vmm-proxy", "var/lib/vmm-proxy"):
            (root / place).mkdir(parents=True)
        install("2.", office, tmp_path / "guest", root)
        install("3.", office, tmp_path / "host", root)
        agent = ("guest_service", "serve", "--config", f"{root}/etc/guest-service/config.toml", "--simulate", "h200")
        proxy = ("vmm_proxy", "serve", "--config", f"{root}/etc/vmm-proxy/config.toml")
        with started(*agent, prefix=prefix), started(*proxy, prefix=prefix):
            yield Running(office, root, prefix)


def test_who_follows_the_page_sees_the_guests_card_and_each_certificate_opens_its_own_door_only(running: Running) -> None:
    listing, gpus = commands(PAGE, "4.")
    seen = running.ask(f"{listing} -o json")
    assert seen.returncode == 0, seen.stderr
    assert [(guest["id"], guest["state"]) for guest in json.loads(seen.stdout)["guests"]] == [("vm7", "serving")]
    seen = running.ask(f"{gpus} -o json")
    assert len(json.loads(seen.stdout)["gpus"]) == 1, seen.stderr

    # As the page says: alice may only look, and bob may more.
    refused = running.ask(gpus.replace("gpu vm7", "shutdown --yes vm7"))
    assert refused.returncode != 0
    assert "operator" in refused.stderr
    as_bob = gpus.replace("alice", "bob")
    assert running.ask(as_bob).returncode == 0
    audit = [json.loads(line) for line in (running.root / "var/lib/vmm-proxy/audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["who"]) for line in audit] == [("refused", "certificate email:alice@example.org")]

    # The question of the page's last table, and the three that its first paragraph promises to be refused.
    to_guest = re.search(r"`(guestctl --guest .*? gpu)`", PAGE.read_text(encoding="utf-8"))
    assert to_guest
    assert running.ask(to_guest[1]).returncode == 0
    office = running.office
    for who, ca in (("alice", "links"), ("vm7", "links"), ("host1", "links")):
        tried = running.ask(f"guestctl --guest 10.0.0.7:8000 --ca {ca}.ca --cert {who}.crt --key {who}.key --timeout 5 gpu")
        assert tried.returncode != 0, f"{who} reached the guest itself"
    for who in ("proxy", "vm7", "host1"):
        tried = running.ask(f"guestctl --proxy 10.0.0.1:8443 --ca callers.ca --cert {who}.crt --key {who}.key --timeout 5 list")
        assert tried.returncode != 0, f"{who} reached the proxy"

    # Renewed as the page says: the same line again, both files copied over; the next connection sees the new one.
    before = (office / "host1.crt").read_bytes()
    must("./make-certificates.sh server callers host1 IP:10.0.0.1 DNS:host1.example", office)
    assert (office / "host1.crt").read_bytes() != before
    for name in ("host1.crt", "host1.key"):
        shutil.copy(office / name, running.root / "etc/vmm-proxy" / name)
    assert running.ask(listing).returncode == 0
    shown = running.ask(
        "openssl s_client -connect 10.0.0.1:8443 -CAfile callers.ca </dev/null 2>/dev/null | openssl x509 -noout -serial"
    )
    ours = must("openssl x509 -in host1.crt -noout -serial", office)
    assert shown.stdout == ours


def test_keys_are_for_their_owner_only_and_certificates_say_their_end_and_their_names(office: Path) -> None:
    for key in office.glob("*.key"):
        assert key.stat().st_mode & 0o777 == 0o600, key
    for name, purpose, san in (
        ("vm7", "TLS Web Server Authentication", "IP Address:10.0.0.7"),
        ("host1", "TLS Web Server Authentication", "IP Address:10.0.0.1, DNS:host1.example"),
        ("proxy", "TLS Web Client Authentication", "DNS:host1.example"),
        ("bob", "TLS Web Client Authentication", "URI:spiffe://example.org/operators/bob"),
    ):
        text = must(f"openssl x509 -in {name}.crt -noout -ext extendedKeyUsage,subjectAltName", office)
        assert [line.strip() for line in text.splitlines()[1::2]] == [purpose, san]
    assert must("openssl verify -purpose sslserver -CAfile links.ca vm7.crt", office).strip() == "vm7.crt: OK"
    assert typed("openssl verify -purpose sslclient -CAfile links.ca vm7.crt", office).returncode != 0
    assert typed("openssl verify -CAfile callers.ca vm7.crt", office).returncode != 0
    assert sorted(path.name for path in office.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "stands at the top"),
        ("server links", "stands at the top"),
        ("server links vm9", "vm9 needs at least one SAN, such as DNS:vm9.example"),
        ("authority links", "the authority links is there already"),
        ("server nobody vm9 DNS:vm9", "make-certificates.sh authority nobody"),
        ("server links ../vm9 DNS:vm9", "'../vm9' cannot be a file's name"),
        ("server links -vm9 DNS:vm9", "'-vm9' cannot be a file's name"),
        ("client links vm9 vm9.example", "'vm9.example' is none of DNS:name"),
        ("client links vm9 'DNS:a,IP:1.2.3.4'", "characters that no name has"),
        ("client links vm9 IP:1.2.3", "openssl did not sign IP:1.2.3 for vm9"),
    ],
)
def test_what_the_script_cannot_do_is_refused_in_one_line_and_changes_nothing(office: Path, arguments: str, words: str) -> None:
    before = {path.name: path.read_bytes() for path in office.iterdir()}
    done = typed(f"./make-certificates.sh {arguments}", office)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert words in done.stderr
    assert {path.name: path.read_bytes() for path in office.iterdir()} == before
