"""The subcommands of `guestctl`; each makes a Question of its options and asks nothing. None of them imports gRPC."""

from __future__ import annotations

import sys
from typing import Any

import click

from guest_client.guestctl import completion
from guest_client.guestctl.context_commands import contexts
from guest_client.guestctl.options import (
    GuestId,
    group_options,
    many_guests,
    max_age_option,
    one_card,
    one_guest,
    shared_options,
    stream_options,
)
from guest_client.guestctl.reading import read_question
from guest_client.guestctl.request import SORTS, Chosen, Question, Subject
from guest_client.guestctl.selector import SelectorError, together
from guest_transport.process.logs import escape

_EPILOG = (
    "ADDR is unix:/path, HOST:PORT, [v6]:PORT, vsock:CID:PORT or hvsock:/path:PORT. Options may stand after the command too."
)
_MORE = "TLS, certificates, tokens and the exit status: guestctl --help"


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@group_options
@click.version_option(package_name="guestscope", prog_name="guestctl", message="%(prog)s %(version)s")
def guestctl(**_shared: Any) -> None:
    """Show the guests of a host and their GPUs.

    Exit status: 0 answered, 1 the call failed or its answer could not be written, 2 misuse, 3 no such guest, 4 not reachable, 5 no
    answer in time, 6 (of health alone) a card is not ok, 130 interrupted, 141 the reader closed the pipe.
    """


@guestctl.command(short_help="GPUs of one guest, of several, or of all (--all).", epilog=_MORE)
@many_guests
@click.option("--all", "every", is_flag=True, help="All guests that the proxy knows, each as soon as it answers.")
@max_age_option
@shared_options
@click.pass_context
def gpu(
    context: click.Context, /, ids: tuple[str, ...], selectors: Any, every: bool, max_age: float | None, **_shared: Any
) -> Question:
    """GPUs of one guest, of several, or of all guests.

    Use, memory, temperature, power, and what could not be read.
    """
    if every and ids:
        raise click.UsageError("--all and an ID exclude each other: give one")
    if len(ids) == 1 and not selectors:
        return read_question(context, Subject.GPU, ids[0], max_age_seconds=max_age)
    return read_question(context, Subject.GPU, chosen=_chosen(ids, selectors, every=every), max_age_seconds=max_age)


@guestctl.command(short_help="Whether every card is ok; what is wrong with it if not, and what to do.", epilog=_MORE)
@many_guests
@shared_options
@click.pass_context
def health(context: click.Context, /, ids: tuple[str, ...], selectors: Any, **_shared: Any) -> Question:
    """Whether every card is ok, of one guest, of several, or of all.

    A line for each card that is not ok: why, and what to do. Exit status 0: every card is ok; 6: a card is degraded, failed, unknown or
    missing.
    """
    if len(ids) == 1 and not selectors:
        return read_question(context, Subject.HEALTH, ids[0])
    return read_question(context, Subject.HEALTH, chosen=_chosen(ids, selectors))


def _asks_a_guest(context: click.Context) -> bool:
    return context.params["guest"] is not None or (context.parent is not None and context.parent.params["guest"] is not None)


@guestctl.command(short_help="Everything about one card, by group, and whether it is healthy.", epilog=_MORE)
@one_card
@max_age_option
@shared_options
@click.pass_context
def card(context: click.Context, /, where: tuple[str, ...], max_age: float | None, **_shared: Any) -> Question:
    """Everything about one card.

    Its verdict with why and what to do, and every value by group with its unit. A dash is a value that was asked and is unset; groups that
    the guest's agent was not told to ask (gpu.groups) are named at the end. The card is named by its INDEX or UUID, or by its PCI address.
    """
    if _asks_a_guest(context):
        if len(where) != 1:
            raise click.UsageError("with --guest there is one guest only: give the card alone, guestctl card INDEX|UUID")
        return read_question(context, Subject.CARD, card=where[0], max_age_seconds=max_age)
    if len(where) != 2 or "" in where:
        raise click.UsageError("which card? give the guest's ID and the card: guestctl card ID INDEX|UUID")
    return read_question(
        context, Subject.CARD, GuestId().convert(where[0], None, context), card=where[1], max_age_seconds=max_age
    )


def _of_one_guest(subject: Subject, what: str) -> None:
    @guestctl.command(subject.value, help=what, epilog=_MORE)
    @one_guest
    @shared_options
    @click.pass_context
    def command(context: click.Context, /, vm_id: str | None, **_shared: Any) -> Question:
        return read_question(context, subject, vm_id)


_of_one_guest(Subject.INFO, "Who a guest is: version of its agent, ids.")
_of_one_guest(Subject.SYS, "Operating system, memory, load and disks of a guest.")
_of_one_guest(Subject.NET, "Name servers, gateways and interfaces of a guest.")
_of_one_guest(Subject.CONTAINERS, "Containers of a guest.")


@guestctl.command(epilog=_MORE)
@one_guest
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
@shared_options
@click.pass_context
def shutdown(context: click.Context, /, vm_id: str | None, yes: bool, **_shared: Any) -> Question:
    """Power a guest off."""
    question = read_question(context, Subject.SHUTDOWN, vm_id)
    if not yes:
        if not sys.stdin or not sys.stdin.isatty():
            raise click.UsageError("shutdown asks first and there is no terminal: give --yes")
        click.confirm(f"Power off {escape(vm_id or question.address)}?", abort=True, err=True)
    return question


@guestctl.command("list", epilog=_MORE)
@many_guests
@shared_options
@click.pass_context
def list_guests(context: click.Context, /, ids: tuple[str, ...], selectors: Any, **_shared: Any) -> Question:
    """The guests that a proxy knows, and which of them answer."""
    return read_question(context, Subject.LIST, chosen=_chosen(ids, selectors))


@guestctl.command(short_help="The cards of all guests, the busiest first, live.", epilog=_MORE)
@many_guests
@click.option(
    "--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True,
    help="Which cards come first; on a terminal the first letter of each word changes it.",
)  # fmt: skip
@stream_options
@shared_options
@click.pass_context
def top(
    context: click.Context,
    /,
    *,
    ids: tuple[str, ...],
    selectors: Any,
    sort: str,
    interval: float,
    count: int | None,
    **_shared: Any,
) -> Question:
    """The cards of all guests live, the busiest first.

    q or Ctrl-C ends it. On something that is no terminal the table is printed once per interval.
    """
    return read_question(context, Subject.TOP, chosen=_chosen(ids, selectors), sort=sort, interval_seconds=interval, count=count)


@guestctl.command(epilog=_MORE)
@many_guests
@click.option("--changes", is_flag=True, help="With -o json and csv: only outcomes that differ from the one before.")
@stream_options
@shared_options
@click.pass_context
def watch(
    context: click.Context,
    /,
    *,
    ids: tuple[str, ...],
    selectors: Any,
    changes: bool,
    interval: float,
    count: int | None,
    **_shared: Any,
) -> Question:
    """What changes on the guests and their cards, line by line.

    With -o json or csv every outcome of every guest, as it comes.
    """
    return read_question(
        context,
        Subject.WATCH,
        chosen=_chosen(ids, selectors),
        interval_seconds=interval,
        count=count,
        changes_only=changes,
    )


@guestctl.command("completion", short_help="Print what a shell needs to complete guestctl.")
@click.argument("shell", type=click.Choice(completion.SHELLS))
def print_completion(shell: str) -> str:
    """Print what a shell evaluates to complete guestctl.

    \b
    ~/.bashrc                    eval "$(guestctl completion bash)"
    ~/.zshrc                     eval "$(guestctl completion zsh)"
    ~/.config/fish/config.fish   guestctl completion fish | source
    """
    return completion.script(shell, guestctl)


guestctl.add_command(contexts)


def _chosen(ids: tuple[str, ...], selectors: Any, *, every: bool = False) -> Chosen:
    if "" in ids:
        raise click.UsageError("which guest? an ID is empty")
    try:
        return Chosen(ids, together(selectors), by_default=not (ids or selectors or every))
    except SelectorError as error:
        raise click.UsageError(f"--selector: {error}") from error
