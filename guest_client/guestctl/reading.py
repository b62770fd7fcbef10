"""From the options of a command line to a Question: what was given where, what the environment adds, and what makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from guest_client.guestctl.proxies import Asked, access, asked_proxies
from guest_client.guestctl.request import ACCESS_VARIABLES, SHARED, Access, Chosen, Output, Proxy, Question, Subject
from guest_contract.identifiers import GUEST_ID_RULE

# Questions about all guests of a host, or about the host itself; a guest has no answer.
_OF_A_PROXY = {Subject.LIST, Subject.TOP, Subject.WATCH}
# What can be asked of several proxies at once.
_OF_MANY = {Subject.LIST, Subject.GPU, Subject.TOP, Subject.HEALTH}
# Answers that are rows.
_HAS_CSV = {Subject.LIST, Subject.GPU, Subject.TOP, Subject.WATCH, Subject.CONTAINERS, Subject.HEALTH, Subject.CARD}


def read_question(
    context: click.Context, subject: Subject, vm_id: str | None = None, chosen: Chosen | None = None, **more: Any
) -> Question:
    """The question of a subcommand, with `more` of its own; raises click.UsageError."""
    given = _given(context)
    output = Output(given["output"] or Output.TABLE.value)
    if output is Output.CSV and subject not in _HAS_CSV:
        raise click.UsageError(f"the answer of {subject.value} is no table: use -o json")
    if given["guest"] is not None:
        _refuse_for_a_guest(given, subject, vm_id, chosen)
        return Question(
            subject, given["guest"], output=output, access=_access_of_a_guest(given), timeout_seconds=given["timeout"], **more
        )
    asked = asked_proxies(given)
    if chosen is not None and chosen.by_default:
        chosen = _by_default(subject, asked)
    if chosen is None and not vm_id and subject not in _OF_A_PROXY:
        raise click.UsageError(f"which guest? give its ID (`guestctl list` shows them): guestctl {subject.value} ID")
    if asked.several and subject in _OF_MANY:
        chosen = chosen or Chosen((vm_id or "",))
        for each in chosen.ids:
            if "/" in each:
                _called(each.rpartition("/")[0], asked, each)
        return Question(subject, "", None, chosen, output, proxies=asked.proxies, timeout_seconds=given["timeout"], **more)
    proxy, ids = _one_of(asked, subject, [vm_id] if vm_id else chosen.ids if chosen else [])
    vm_id, chosen = (ids[0] if vm_id else None), (replace(chosen, ids=ids) if chosen else None)
    return Question(subject, proxy.address, vm_id, chosen, output, proxy.access, timeout_seconds=given["timeout"], **more)


def _refuse_for_a_guest(given: dict[str, Any], subject: Subject, vm_id: str | None, chosen: Chosen | None) -> None:
    other = next((name for name in ("proxy", "hosts", "context") if given[name]), None)
    if other is not None:
        raise click.UsageError(f"--{other} and --guest exclude each other: give one")
    if subject in _OF_A_PROXY or (chosen is not None and not chosen.by_default):
        what = f"{subject.value} asks a proxy" if subject in _OF_A_PROXY else f"{subject.value} of several guests asks a proxy"
        raise click.UsageError(f"a guest knows no other guests: {what}; give --proxy in place of --guest")
    if vm_id is not None:
        raise click.UsageError("with --guest there is one guest only: leave the ID out")
    if given["token_file"] is not None:
        raise click.UsageError("--token-file is for a proxy: a guest takes no token")


def _access_of_a_guest(given: dict[str, Any]) -> Access:
    return access({name: given[name] for name in ACCESS_VARIABLES if given[name] is not None}, tls=bool(given["tls"]))


def _by_default(subject: Subject, asked: Asked) -> Chosen | None:
    """The guests of the context's selector, else all; `gpu` of all is said, not meant."""
    return None if subject is Subject.GPU and not asked.labels else Chosen(labels=asked.labels)


def _one_of(asked: Asked, subject: Subject, ids: Sequence[str]) -> tuple[Proxy, tuple[str, ...]]:
    """The proxy that is asked, and the guests' ids there: `HOST/ID` names one of several."""
    hosts = {each.rpartition("/")[0] for each in ids} or {""}
    if hosts == {""} and not asked.several:
        return asked.proxies[0], tuple(ids)
    if len(hosts) > 1 or hosts == {""}:
        raise click.UsageError(
            f"{subject.value} asks one of these {len(asked.proxies)} proxies: give HOST/ID, as list shows it, or one --proxy"
        )
    (host,) = hosts
    return _called(host, asked, ids[0]), tuple(each.rpartition("/")[2] for each in ids)


def _called(host: str, asked: Asked, vm_id: str) -> Proxy:
    proxy = next((each for each in asked.proxies if each.host == host), None)
    if proxy is None:
        raise click.UsageError(
            f"{vm_id[:128]!r} is no guest id: {GUEST_ID_RULE}; as HOST/ID, no proxy is called so (--proxy NAME=ADDR, --hosts FILE)"
        )
    return proxy


def _given(context: click.Context) -> dict[str, Any]:
    """The shared options; those after the subcommand win over those before it."""
    here = context.params
    before = context.parent.params if context.parent is not None else {}
    # An option that may be repeated and was not given is an empty tuple.
    return {name: here[name] if here.get(name) not in (None, ()) else before.get(name) for name in SHARED}
