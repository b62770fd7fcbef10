"""`guestctl context list|use|show`: the contexts of the configuration file, and which of them is used. None of them asks a server."""

from __future__ import annotations

from collections.abc import Iterator

import click

from guest_transport.errors import SettingsError
from guest_transport.process.logs import escape


def _complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from guest_client.guestctl import config  # noqa: PLC0415 - msgspec is loaded only where the file is read

    try:
        return sorted(name for name in config.read().contexts if name.startswith(incomplete))
    except SettingsError:
        return []


@click.group("context", short_help="Contexts of the configuration file: which are there, and which is used.")
def contexts() -> None:
    """Contexts: which proxy, whose credentials, which guests, under a name.

    They stand in ~/.config/guestctl/config.toml ($XDG_CONFIG_HOME). Flags win over the environment, and the environment over a context;
    where --proxy, --hosts or $GUESTCTL_PROXY name a proxy, the current context is not used.

    Exit status: 0 done, 2 no such context, or a file that cannot be used.
    """


@contexts.command("list", short_help="The contexts; a star marks the one that is used.")
def list_contexts() -> str:
    """The contexts by name, with their proxies; a star marks the current one."""
    from guest_client.guestctl import config  # noqa: PLC0415 - the same

    try:
        found = config.read()
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    if not found.contexts:
        return f"no contexts: write [contexts.NAME] with a proxy into {config.path()}\n"
    rows = [
        (f"{'*' if name == found.current else ' '} {name}", context.hosts or ", ".join(context.proxies()) or "the default proxy")
        for name, context in sorted(found.contexts.items())
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name.ljust(width)}  {escape(where)}\n" for name, where in rows)


@contexts.command("use", short_help="Use this context from now on.")
@click.argument("name", shell_complete=_complete)
def use_context(name: str) -> str:
    """Use this context from now on: writes `current` into the file, and nothing else."""
    from guest_client.guestctl import config  # noqa: PLC0415 - the same

    try:
        config.use(name)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    return f"context {escape(name)} is used now\n"


@contexts.command("show", short_help="What is in a context.")
@click.argument("name", required=False, shell_complete=_complete)
def show_context(name: str | None) -> str:
    """What is in this context, or in the current one: its proxies, the files of its credentials, its selector."""
    from guest_client.guestctl import config  # noqa: PLC0415 - the same

    try:
        found = config.read()
        name = name or found.current
        if not name:
            return f'no context is used: guestctl context use NAME, or write current = "NAME" into {config.path()}\n'
        return f"{escape(name)}{' (current)' if name == found.current else ''}\n{''.join(_lines(found.context(name)))}"
    except SettingsError as error:
        raise click.UsageError(str(error)) from error


def _lines(context: object) -> Iterator[str]:
    for key in context.__struct_fields__:  # type: ignore[attr-defined] # a msgspec struct, whose module is not loaded for this
        value = getattr(context, key)
        if value:
            yield f"  {key} = {escape(', '.join(value) if isinstance(value, tuple) else str(value))}\n"
