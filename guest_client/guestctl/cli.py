"""The command line of `guestctl`, from its arguments to its exit status; every refusal is one line.

Nothing here imports gRPC before a call is to be made, so that help and refusals come at once. Rejected: click's own error page (usage and
hint around the one line that matters).

Exit status: 0 answered; 1 the call failed, or the answer could not be written; 2 misuse; 3 no such guest; 4 proxy or guest not reachable;
5 no answer in time; 6 (`health`) a card is not ok; 130 interrupted; 141 the reader closed the pipe (as a process ended by SIGPIPE).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from guest_client.guestctl.commands import guestctl
from guest_client.guestctl.output import stdout
from guest_client.guestctl.output.stdout import NOT_WRITTEN, PIPE_CLOSED, OutputError
from guest_client.guestctl.request import Question, Subject
from guest_transport.process.logs import escape

MISUSED, INTERRUPTED = 2, 130
EXIT_STATUSES = {0, NOT_WRITTEN, MISUSED, INTERRUPTED, PIPE_CLOSED}
# Ended by Ctrl-C as a matter of course, so nothing is said about it.
_ENDLESS = {Subject.TOP, Subject.WATCH}


def run(arguments: Sequence[str]) -> int:
    """Read, ask and show; returns the exit status."""
    try:
        read = guestctl.main(list(arguments), prog_name="guestctl", standalone_mode=False)
        if isinstance(read, Question):
            return _answer(read)
        if isinstance(read, str):
            stdout.write(read)
        # --help and --version have written for themselves.
        return read if isinstance(read, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISUSED
    except click.ClickException as error:
        return complain(error.format_message(), error.exit_code)
    except click.Abort:
        return complain("interrupted", INTERRUPTED)
    except OutputError as error:
        return complain(str(error), error.exit_status)


def _answer(question: Question) -> int:
    from guest_client.guestctl.run import CallFailed, answer  # noqa: PLC0415 - gRPC and rich load only when a call is made

    try:
        answer(question, complain)
    except CallFailed as error:
        return complain(str(error), error.exit_status)
    except KeyboardInterrupt:
        return complain("" if question.subject in _ENDLESS else "interrupted", INTERRUPTED)
    return 0


def complain(message: str, status: int = 0) -> int:
    """Say `message`, if there is one, on stderr in one line; returns `status`."""
    if message and sys.stderr is not None:
        sys.stderr.write(f"guestctl: {escape(' '.join(message.split()))}\n")
    return status
