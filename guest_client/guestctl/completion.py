"""Shell completion: the script for a shell, and guest ids asked of the proxy while somebody presses Tab.

A shell executes what it is given and a person waits for it: only texts that are ids of the contract are offered, and a proxy that does not
answer within COMPLETION_SECONDS offers nothing.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from guest_client.guestctl.reading import read_question
from guest_client.guestctl.request import Subject
from guest_contract.identifiers import valid_guest_id

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_GUESTCTL_COMPLETE"
# A person holds the Tab key; a proxy on the same host answers a list in milliseconds, or after 0.25 s when guests are slow.
COMPLETION_SECONDS = 2.0
# More than that no shell shows on a page.
_OFFERED_LIMIT = 500


def script(shell: str, command: click.Command) -> str:
    """What `shell` must evaluate once; click's own."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}: {', '.join(SHELLS)} are known")
    return kind(command, {}, "guestctl", _VARIABLE).source()


def complete_guest_id_of_a_card(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The same for the first argument of `card`; the second is a card."""
    return [] if context.params.get("where") else complete_guest_ids(context, parameter, incomplete)


def complete_guest_ids(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids that begin with `incomplete`; none when the proxy does not say."""
    from guest_client.guestctl.fleet.listing import guest_ids  # noqa: PLC0415 - gRPC loads only when a call is made

    try:
        found = guest_ids(read_question(context, Subject.LIST), COMPLETION_SECONDS)
    except Exception:  # noqa: BLE001 - whatever fails, somebody is typing: a traceback would end up in the command line
        return []
    return [each for each in found if each.startswith(incomplete) and valid_guest_id(each.rpartition("/")[2])][:_OFFERED_LIMIT]
