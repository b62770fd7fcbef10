"""From the options of a command line to a Question: what was given where, what the environment adds, and what makes no sense."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from guest_client.guestctl.request import (
    ACCESS_VARIABLES,
    DEFAULT_PROXY,
    PROXY_VARIABLE,
    SHARED,
    Access,
    Chosen,
    Output,
    Question,
    Subject,
)

# Questions about all guests of a host, or about the host itself; a guest has no answer.
_OF_A_PROXY = {Subject.LIST, Subject.TOP, Subject.WATCH}
# Answers that are rows.
_HAS_CSV = {Subject.LIST, Subject.GPU, Subject.TOP, Subject.WATCH, Subject.CONTAINERS, Subject.HEALTH, Subject.CARD}


def read_question(
    context: click.Context, subject: Subject, vm_id: str | None = None, chosen: Chosen | None = None, **more: Any
) -> Question:
    """The question of a subcommand, with `more` of its own; raises click.UsageError."""
    given = _given(context)
    guest, proxy, output = given["guest"], given["proxy"], Output(given["output"] or Output.TABLE.value)
    if proxy is not None and guest is not None:
        raise click.UsageError("--proxy and --guest exclude each other: give one")
    if guest is not None and (subject in _OF_A_PROXY or chosen is not None):
        what = f"{subject.value} asks a proxy" if subject in _OF_A_PROXY else f"{subject.value} of several guests asks a proxy"
        raise click.UsageError(f"a guest knows no other guests: {what}; give --proxy in place of --guest")
    if guest is not None and vm_id is not None:
        raise click.UsageError("with --guest there is one guest only: leave the ID out")
    if guest is None and chosen is None and not vm_id and subject not in _OF_A_PROXY:
        raise click.UsageError(f"which guest? give its ID (`guestctl list` shows them): guestctl {subject.value} ID")
    if output is Output.CSV and subject not in _HAS_CSV:
        raise click.UsageError(f"the answer of {subject.value} is no table: use -o json")
    if guest is not None and given["token_file"] is not None:
        raise click.UsageError("--token-file is for a proxy: a guest takes no token")
    address = guest or proxy or os.environ.get(PROXY_VARIABLE) or DEFAULT_PROXY
    return Question(
        subject, address, vm_id, chosen, output, _access(given, address, of_proxy=guest is None), given["timeout"], **more
    )


def _given(context: click.Context) -> dict[str, Any]:
    """The shared options; those after the subcommand win over those before it."""
    here = context.params
    before = context.parent.params if context.parent is not None else {}
    return {name: here[name] if here.get(name) is not None else before.get(name) for name in SHARED}


def _access(given: dict[str, Any], address: str, *, of_proxy: bool) -> Access:
    flags = {name: given[name] for name in ACCESS_VARIABLES}
    found = flags
    if of_proxy:
        # What the environment says of TLS is for proxies that are reached over TCP; a flag for another one is a mistake, and refused later.
        over_tcp = not address.startswith(("unix:", "vsock:", "hvsock:"))
        from_environment = {
            name: Path(os.environ[variable])
            for name, variable in ACCESS_VARIABLES.items()
            if os.environ.get(variable) and (over_tcp or name == "token_file")
        }
        found = from_environment | {name: file for name, file in flags.items() if file is not None}
    ca, certificate, key = (found.get(name) for name in ("ca", "cert", "key"))
    tls = bool(given["tls"]) or any((ca, certificate, key))
    return Access(tls, ca, certificate, key, found.get("token_file"))
