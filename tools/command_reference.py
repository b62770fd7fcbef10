"""Writes docs/commands.md from the commands themselves: every command, argument, option and exit status, as --help says them.

It walks click's objects, so a command or option without help text is seen and refused (ValueError), and hidden ones are shown
where they work. Rejected: the printed --help between fences (folded to 80 columns, and no link leads to an option).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import click

from guest_client.guestctl.commands import guestctl
from guest_client.guestctl.request import SHARED
from guest_service.cli import doors
from tools.markdown_text import cell, code, note, table, text
from vmm_proxy.cli import main as vmm_proxy

FILE = Path(__file__).resolve().parent.parent / "docs/commands.md"
PROGRAMS: Mapping[str, click.Group] = {"guest-service": doors, "vmm-proxy": vmm_proxy, "guestctl": guestctl}

_INTRODUCTION = (
    "# Commands\n\n"
    + note("reference", "what --help says")
    + """\
Three commands: `guest-service` in a guest, `vmm-proxy` on its host, and `guestctl` for whoever looks ([more about
it](guestctl.md)). Each takes `-h` and `--help`, and each program `--version`; there are no man pages. What an option does that
stands in a file too: [configuration](configuration.md).

A refusal is one line on stderr that names what is wrong and what is allowed. The servers write nothing to stdout.

"""
)

_COMPLETION = """\
## Shell completion

| shell, in | `guestctl`, guest ids included |
| --- | --- |
| bash, `~/.bashrc` | `eval "$(guestctl completion bash)"` |
| zsh, `~/.zshrc` | `eval "$(guestctl completion zsh)"` |
| fish, `~/.config/fish/config.fish` | `guestctl completion fish \\| source` |

The servers' commands and options are completed after `eval "$(_GUEST_SERVICE_COMPLETE=bash_source guest-service)"` and
`eval "$(_VMM_PROXY_COMPLETE=bash_source vmm-proxy)"`; for other shells write `zsh_source` or `fish_source`. bash must be 4.4 or newer.
"""


def render() -> str:
    """The whole page."""
    return _INTRODUCTION + "".join(part for program in PROGRAMS for part in _program(program)) + _COMPLETION


def _program(program: str) -> Iterator[str]:
    group = PROGRAMS[program]
    context = click.Context(group, info_name=program)
    yield f"## {program}\n\n{_help(group)}"
    shared = [each for each in group.params if each.name in SHARED and isinstance(each, click.Option)]
    if shared:
        yield "Of every command that asks:\n\n" + _options(context, shared)
    yield from _commands(context, group, SHARED if shared else ())


def _commands(context: click.Context, group: click.Group, shared: Collection[str]) -> Iterator[str]:
    """The commands of a group, those of a group in it after it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield f"### {inner.command_path}\n\n```\n{_usage(inner, command)}\n```\n\n{_help(command)}"
        own = [each for each in command.params if isinstance(each, click.Option) and each.name not in shared]
        if own:
            yield _options(inner, own)
        if isinstance(command, click.Group):
            yield from _commands(inner, command, shared)


def _usage(context: click.Context, command: click.Command) -> str:
    return f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}"


def _help(command: click.Command) -> str:
    """The paragraphs of the command's help; raises ValueError when it has none."""
    if not command.help:
        raise ValueError(f"{command.name}: no help text")
    shown: list[str] = []
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        # Click's sign for "do not fold": lines that stand as they are.
        if paragraph.startswith("\b\n"):
            shown.append("```\n" + paragraph.removeprefix("\b\n") + "\n```\n\n")
        else:
            shown.append(text(paragraph) + "\n\n")
    return "".join(shown)


def _options(context: click.Context, options: list[click.Option]) -> str:
    return table(("option", "what it does"), ([code(_option(context, option)), cell(meaning(option))] for option in options))


def _option(context: click.Context, option: click.Option) -> str:
    names = ", ".join(option.opts)
    return names if option.is_flag else f"{names} {option.make_metavar(context).removeprefix('[').removesuffix(']')}"


def meaning(option: click.Option) -> str:
    """What its help says; raises ValueError when it says nothing."""
    if not option.help:
        raise ValueError(f"{option.opts[0]}: no help text")
    extra = ["required"] if option.required else []
    extra += ["repeatable"] if option.multiple and "epeat" not in option.help else []
    extra += [f"default {option.default}"] if option.show_default else []
    if isinstance(option.type, click.IntRange) and option.type.min is not None:
        extra.append(f"from {option.type.min} on")
    return f"{option.help} ({', '.join(extra)})" if extra else option.help


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
