"""The command line of `guestctl`: reads it, refuses what makes no sense in one line, and turns every outcome into an exit status.

Options stand before or after the subcommand, the later one wins. Nothing here imports gRPC, so that help and refusals come at once; and
nothing but `_write` writes an answer, so that a closed pipe is met in one place. Rejected: click's own error page (usage and hint
around the one line that matters).

Exit status: 0 answered; 1 the call failed, or the answer could not be written; 2 misuse; 3 no such guest; 4 proxy or guest not reachable;
5 no answer in time; 130 interrupted; 141 the reader closed the pipe (as a process ended by SIGPIPE).
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

import click

from guest_client.guestctl.question import DEFAULT_PROXY, Question, Subject
from guest_transport.logs import escape

PROXY_VARIABLE = "GUESTCTL_PROXY"
FAILED, MISUSED, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141
# What goes before or after the subcommand; each is a key of click's parsed parameters.
_SHARED = ("proxy", "guest", "timeout", "output")

F = TypeVar("F", bound=Callable[..., Any])  # Any: a click callback takes what its options give


class Seconds(click.ParamType[float]):
    """A finite number of seconds, over zero unless zero makes sense."""

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails with what is allowed."""
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not self._zero):
            self.fail(f"{value!r} is no number of seconds {'from 0 on' if self._zero else 'over 0'}", param, ctx)
        return seconds


def _shared_options(command: F) -> F:
    for option in (
        click.option("-o", "--output", type=click.Choice(["table", "json"]), help="How to show the answer (default: table)."),
        click.option("--timeout", type=Seconds(), help="Longest wait for an answer (default: 15 s for gpu, 20 s for the rest)."),
        click.option("--guest", metavar="ADDR", help="Ask the one guest that listens there, without a proxy."),
        click.option("--proxy", metavar="ADDR", help=f"Ask this proxy (default: ${PROXY_VARIABLE}, else {DEFAULT_PROXY})."),
    ):
        command = option(command)
    return command


@click.group(epilog="ADDR is unix:/path, HOST:PORT, [v6]:PORT, vsock:CID:PORT or hvsock:/path:PORT.")
@_shared_options
@click.version_option(version("guestscope"), prog_name="guestctl")
@click.pass_context
def guestctl(context: click.Context, /, **shared: Any) -> None:
    """Show the guests of a host and their GPUs.

    Exit status: 0 answered, 1 the call failed, 2 misuse, 3 no such guest, 4 not reachable, 5 no answer in time.
    """
    context.obj = shared


@guestctl.command()
@click.argument("vm_id", metavar="[ID]", required=False)
@click.option("--max-age", type=Seconds(zero=True), help="Refuse a sample that is older; the guest then takes a new one.")
@_shared_options
@click.pass_context
def gpu(context: click.Context, /, vm_id: str | None, max_age: float | None, **shared: Any) -> Question:
    """GPUs of a guest: use, memory, temperature, power, confidential computing."""
    return _question(context, Subject.GPU, vm_id, shared, max_age)


def _of_one_guest(subject: Subject, what: str) -> None:
    @guestctl.command(subject.value, help=what)
    @click.argument("vm_id", metavar="[ID]", required=False)
    @_shared_options
    @click.pass_context
    def command(context: click.Context, /, vm_id: str | None, **shared: Any) -> Question:
        return _question(context, subject, vm_id, shared)


_of_one_guest(Subject.INFO, "Who a guest is: version of its agent, ids.")
_of_one_guest(Subject.SYS, "Operating system, memory, load and disks of a guest.")
_of_one_guest(Subject.NET, "Name servers, gateways and interfaces of a guest.")
_of_one_guest(Subject.CONTAINERS, "Containers of a guest.")


@guestctl.command()
@click.argument("vm_id", metavar="[ID]", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_shared_options
@click.pass_context
def shutdown(context: click.Context, /, vm_id: str | None, yes: bool, **shared: Any) -> Question:
    """Power a guest off."""
    question = _question(context, Subject.SHUTDOWN, vm_id, shared)
    if not yes:
        if not sys.stdin or not sys.stdin.isatty():
            raise click.UsageError("shutdown asks first and there is no terminal: give --yes")
        click.confirm(f"Power off {escape(vm_id or question.address)}?", abort=True, err=True)
    return question


@guestctl.command("list")
@_shared_options
@click.pass_context
def list_guests(context: click.Context, /, **shared: Any) -> Question:
    """The guests that a proxy knows."""
    return _question(context, Subject.LIST, None, shared)


def _question(
    context: click.Context, subject: Subject, vm_id: str | None, here: dict[str, Any], max_age: float | None = None
) -> Question:
    before: dict[str, Any] = context.obj
    proxy, guest, timeout, output = (here[name] if here[name] is not None else before[name] for name in _SHARED)
    if proxy is not None and guest is not None:
        raise click.UsageError("--proxy and --guest exclude each other: give one")
    if subject is Subject.LIST:
        if guest is not None:
            raise click.UsageError("a guest knows no other guests: list takes --proxy")
    elif guest is not None and vm_id is not None:
        raise click.UsageError("with --guest there is one guest only: leave the ID out")
    elif guest is None and not vm_id:
        raise click.UsageError(f"which guest? give its ID (`guestctl list` shows them): guestctl {subject.value} ID")
    address = guest or proxy or os.environ.get(PROXY_VARIABLE) or DEFAULT_PROXY
    return Question(subject, address, vm_id, timeout, max_age, as_json=output == "json")


def run(arguments: Sequence[str]) -> int:
    """Read, ask and show; returns the exit status."""
    try:
        question = guestctl.main(list(arguments), prog_name="guestctl", standalone_mode=False)
        if not isinstance(question, Question):
            return question or 0  # --help and --version have written for themselves
        return _answer(question)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISUSED
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except click.Abort:
        return _complain("interrupted", INTERRUPTED)


def _answer(question: Question) -> int:
    from guest_client.guestctl.answering import CallFailed, answer  # noqa: PLC0415 - gRPC and rich load only when a call is made

    try:
        text, remark = answer(question)
    except CallFailed as error:
        return _complain(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    if remark:
        _complain(remark, 0)
    return _write(text)


def _write(text: str) -> int:
    if sys.stdout is None:
        return _complain("the answer cannot be written: standard output is closed", FAILED)
    try:
        # A terminal or pipe that cannot show a character gets an escape for it.
        left = memoryview(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        while left:  # an unbuffered stream (python -u) writes as much as a pipe takes
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer would be written, and complained about, once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if isinstance(error, BrokenPipeError):
            return PIPE_CLOSED
        return _complain(f"the answer cannot be written: {error.strerror}", FAILED)
    return 0


def _complain(message: str, status: int) -> int:
    if sys.stderr is not None:
        sys.stderr.write(f"guestctl: {escape(' '.join(message.split()))}\n")
    return status
