"""Who may call: rules that read, name who exists, and can have an effect. No token and no hash is ever shown."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from guest_transport.addresses import TcpAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import FileFacts, read_facts
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.errors import SettingsError
from vmm_proxy.config import ProxyConfig
from vmm_proxy.doctor.machine import Host
from vmm_proxy.policy.settings import access_rules


async def examine_access(host: Host) -> Sequence[Finding]:
    """[access]: names that exist, tokens that read, and rules that can have an effect."""
    config = host.config
    file = config.access.token_file
    facts = await in_thread(lambda: None if file is None else read_facts(Path(file)))
    try:
        rules = await in_thread(lambda: access_rules(config.access, host.where, loopback_only=True))
    except SettingsError as error:
        return [wrong(str(error), "correct it; docs/access.md"), *judge_token_file(facts)]
    beyond = [address for address in host.listen() if isinstance(address, TcpAddress) and not address.loopback]
    found = [*judge_token_file(facts), *judge_effect(config, tokens=len(rules.tokens), beyond_loopback=bool(beyond))]
    grants, tokens = len(config.access.grant), len(rules.tokens)
    return found or [ok(f"{grants} grant{'' if grants == 1 else 's'}, {tokens} token{'' if tokens == 1 else 's'}")]


def judge_token_file(facts: FileFacts | OSError | None) -> list[Finding]:
    """Hashes of random tokens are no secret, and their names and roles are nobody else's business."""
    if isinstance(facts, FileFacts) and facts.mode & stat.S_IROTH:
        return [note(f"access.token_file: everybody may read it: {facts.path} is {facts.owners}", f"chmod o-r {facts.path}")]
    return []


def judge_effect(config: ProxyConfig, *, tokens: int, beyond_loopback: bool) -> list[Finding]:
    """Rules that nobody can ever fulfil, and listeners that let nobody do anything."""
    by_certificate = [grant.certificate for grant in config.access.grant if grant.certificate is not None]
    asked_for = config.tls is not None and config.tls.client_authorities is not None
    found = []
    if by_certificate and not asked_for:
        found.append(
            wrong(
                f"access.grant for {', '.join(by_certificate[:4])} has no effect: no caller is asked for a certificate",
                "set [tls] with client_authorities; docs/access.md",
            )
        )
    if asked_for and not by_certificate and not tokens:
        found.append(
            note("callers must show certificates, and none has a role", "add [[access.grant]] with certificate; docs/access.md")
        )
    elif beyond_loopback and not by_certificate and not tokens:
        found.append(
            note("nobody beyond this machine has a role", "add [[access.grant]] with certificate, or tokens; docs/access.md")
        )
    return found
