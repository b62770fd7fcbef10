"""The options of `guestctl` that several commands share, and the types of their values.

Options stand before or after the subcommand; `_SHARED` of the group are the defaults of the subcommand's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from guest_client.guestctl.completion import complete_guest_id_of_a_card, complete_guest_ids
from guest_client.guestctl.request import ACCESS_VARIABLES, DEFAULT_PROXY, PROXY_VARIABLE, Output
from guest_client.guestctl.selector import Pairs, SelectorError, read_pairs
from guest_contract.identifiers import GUEST_ID_RULE, valid_guest_id

F = TypeVar("F", bound=Callable[..., Any])  # Any: a click callback takes what its options give


class Seconds(click.ParamType[float]):
    """A finite number of seconds, over zero unless another least one is given."""

    name = "seconds"

    def __init__(self, *, least: float | None = None) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with what is allowed."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or (seconds <= 0 if self._least is None else seconds < self._least):
            allowed = "over 0" if self._least is None else f"from {self._least:g} on"
            self.fail(f"{value!r} is no number of seconds {allowed}", param, ctx)
        return seconds


class GuestId(click.ParamType[str]):
    """An id of the contract. An empty one passes, for the command to ask which guest is meant."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The id; fails with what is allowed."""
        text = str(value)
        # `HOST/ID`, as guests of several hosts are shown.
        if text and not valid_guest_id(text.rpartition("/")[2]):
            hint = "; give several ids apart, with spaces" if "," in text else ""
            self.fail(f"{text[:128]!r} is no guest id: {GUEST_ID_RULE}{hint}", param, ctx)
        return text


class Selector(click.ParamType[Pairs]):
    r"""Labels: `key=value`, several of them with commas between, a comma in a value as `\,`."""

    name = "selector"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pairs:
        """The pairs; fails with what is allowed."""
        if isinstance(value, tuple):
            return value
        try:
            return read_pairs(str(value))
        except SelectorError as error:
            self.fail(str(error), param, ctx)


_FILE = click.Path(path_type=Path)
_SEEN_BY_ALL = (
    click.option("-o", "--output", type=click.Choice([each.value for each in Output]), help="How to show it (default: table)."),
    click.option("--timeout", type=Seconds(), help="Longest wait for an answer (default: 15 s for gpu, 20 s for the rest)."),
    click.option("--guest", metavar="ADDR", help="Ask the one guest that listens there, without a proxy."),
    click.option("--context", metavar="NAME", help="Use this context of the configuration file, in place of the current one."),
    click.option("--hosts", type=_FILE, help="Ask all proxies in this file, `NAME ADDR` a line (list, gpu, health and top)."),
    click.option(
        "--proxy",
        metavar="ADDR",
        multiple=True,
        help=f"Ask this proxy (default: ${PROXY_VARIABLE}, else the context's, else {DEFAULT_PROXY}); repeat it (NAME=ADDR) for several.",
    ),
)


def _access_options(*, hidden: bool) -> tuple[Callable[[F], F], ...]:
    def option(name: str, text: str, **more: Any) -> Callable[[F], F]:
        variable = ACCESS_VARIABLES.get(name.removeprefix("--").replace("-", "_"))
        shown = f"{text} (${variable})." if variable else f"{text}."
        return click.option(name, hidden=hidden, help=shown, **more)

    return (
        option("--token-file", "File with the token to show", type=_FILE),
        option("--key", "PEM file with the key of --cert", type=_FILE),
        option("--cert", "PEM file with the certificate to show", type=_FILE),
        option("--ca", "PEM file with the authorities to check a TLS server by", type=_FILE),
        option("--tls", "Use TLS with the system's authorities; --ca and --cert imply it", is_flag=True, default=None),
    )


def shared_options(command: F) -> F:
    """The options of every command; those of access are shown in the help of `guestctl` itself alone."""
    for option in (*_access_options(hidden=True), *_SEEN_BY_ALL):
        command = option(command)
    return command


def group_options(command: F) -> F:
    """The same for `guestctl` itself."""
    for option in (*_access_options(hidden=False), *_SEEN_BY_ALL):
        command = option(command)
    return command


def one_guest(command: F) -> F:
    """One ID, left out with --guest."""
    argument: Callable[[F], F] = click.argument(
        "vm_id", metavar="[ID]", required=False, type=GuestId(), shell_complete=complete_guest_ids
    )
    return argument(command)


def one_card(command: F) -> F:
    """One ID, left out with --guest, and a card of that guest."""
    argument: Callable[[F], F] = click.argument(
        "where", metavar="[ID] INDEX|UUID", nargs=-1, required=True, shell_complete=complete_guest_id_of_a_card
    )
    return argument(command)


def max_age_option(command: F) -> F:
    """How old an answer may be."""
    option: Callable[[F], F] = click.option(
        "--max-age", type=Seconds(least=0), help="Refuse an older sample: the guest then takes a new one, and answers with that."
    )
    return option(command)


def many_guests(command: F) -> F:
    """Any number of IDs, and a selector."""
    for option in (
        click.argument("ids", metavar="[ID]...", nargs=-1, type=GuestId(), shell_complete=complete_guest_ids),
        click.option(
            "-l", "--selector", "selectors", metavar="KEY=VALUE", multiple=True, type=Selector(),
            help="Only guests with this label; repeat it, or put commas between, for guests with all of them.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def stream_options(command: F) -> F:
    """How often, and how many times."""
    for option in (
        click.option(
            "--count",
            type=click.IntRange(min=1),
            metavar="N",
            help="End after so many tables of top, or outcomes that watch showed.",
        ),
        click.option(
            "--interval", type=Seconds(least=1), default=5, show_default=True, help="Time between two questions to one guest."
        ),
    ):
        command = option(command)
    return command
