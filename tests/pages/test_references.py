"""The generated pages say what the code says now, all of it, and a thing that nobody described is refused rather than left blank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from google.protobuf import descriptor_pb2

from guest_service.collector.arguments import USAGE
from guest_service.config import GuestConfig
from tools import command_reference, configuration_reference, contract, contract_reference
from tools.command_reference import PROGRAMS
from tools.markdown_text import cell, table
from tools.references import PAGES
from vmm_proxy.cli import main as vmm_proxy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_a_generated_page_is_what_its_source_says_now(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == PAGES[file](), f"run `make reference` and commit {file.relative_to(ROOT)}"


def test_every_page_that_says_that_it_is_generated_is_compared() -> None:
    generated = {page for page in ROOT.glob("docs/**/*.md") if "<!-- Written by `make " in page.read_text(encoding="utf-8")}
    assert generated == set(PAGES)


def commands() -> Iterator[tuple[str, click.Command]]:
    for program, group in PROGRAMS.items():
        context = click.Context(group)
        yield program, group
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{program} {name}", command


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_each_of_its_options_has_help_and_a_place_in_the_reference(name: str) -> None:
    command = COMMANDS[name]
    page = command_reference.render()
    assert command.help
    assert f"## {name}\n" in page
    for option in command.params:
        if isinstance(option, click.Option):
            assert len(option.help or "") > 5, option.opts
            assert re.search(rf"^\| `{re.escape(', '.join(option.opts))}[ `]", page, re.MULTILINE) or option.name == "version", (
                option.opts
            )


@pytest.mark.parametrize("name", [name for name in COMMANDS if " " in name])
def test_the_help_of_a_command_tells_its_exit_status_or_where_it_is_told(name: str) -> None:
    command = COMMANDS[name]
    program = PROGRAMS[name.split()[0]]
    told = f"{command.help} {command.epilog or ''}"
    if "Exit status" not in told and name != "guestctl completion":
        assert "exit status: guestctl --help" in told
        assert "Exit status: 0" in (program.help or "")


def test_an_option_without_help_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="--mute: no help text"):
        command_reference.meaning(click.Option(["--mute"]))


def test_the_options_of_gpu_info_are_those_that_its_process_reads() -> None:
    command = PROGRAMS["guest-service"].get_command(click.Context(PROGRAMS["guest-service"]), "gpu-info")
    assert command is not None
    assert {each.opts[0] for each in command.params} == set(re.findall(r"^  (--[a-z-]+)", USAGE, re.MULTILINE)) - {"--help"}


@pytest.mark.parametrize("page", configuration_reference.pages(), ids=lambda page: page.shape.__name__)
def test_every_key_of_a_file_is_in_the_reference_with_its_default(page: configuration_reference.Page) -> None:
    text = configuration_reference.render().split(f"## {page.title}\n")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    assert named == set(paths(msgspec.inspect.type_info(page.shape)))


def paths(kind: msgspec.inspect.Type, above: str = "") -> Iterator[str]:
    """The keys as the decoder knows them, found another way than the page finds them."""
    match kind:
        case msgspec.inspect.StructType():
            for field in kind.fields:
                yield from paths(field.type, f"{above}.{field.encode_name}".lstrip("."))
        case msgspec.inspect.UnionType(types=types) if any(isinstance(each, msgspec.inspect.StructType) for each in types):
            yield from (path for each in types if isinstance(each, msgspec.inspect.StructType) for path in paths(each, above))
        case msgspec.inspect.VarTupleType(item_type=msgspec.inspect.StructType() as inner):
            yield from paths(inner, f"{above}[]")
        case _:
            yield above


def test_a_key_that_no_comment_explains_is_refused_by_name() -> None:
    class Mute(msgspec.Struct):
        # Said.
        told: int = 1
        untold: int = 2

    assert configuration_reference.comments_above(Mute) == {"told": "Said.", "untold": ""}
    with pytest.raises(ValueError, match=r"Mute\.untold: no comment above it"):
        list(configuration_reference.keys_of(Mute))


def test_each_flag_of_serve_but_the_file_itself_is_named_at_the_key_that_it_sets() -> None:
    told = set(configuration_reference.agent_flags().values()) | {"--config"}
    agent = PROGRAMS["guest-service"].get_command(click.Context(PROGRAMS["guest-service"]), "serve")
    assert agent is not None
    assert told == {each.opts[0] for each in agent.params}
    assert configuration_reference.agent_flags()["gpu.nvml_library"] == "--nvml-library"
    proxy = vmm_proxy.commands["serve"]
    # The proxy's configuration has no key about its log.
    assert set(configuration_reference.PROXY_FLAGS.values()) | {"--config", "--log-format"} == {
        each.opts[0] for each in proxy.params
    }


def test_the_commented_example_of_the_agent_says_the_defaults_that_the_reference_says() -> None:
    page = configuration_reference.render()
    assert f"| `gpu.sample_ttl_seconds` | number, over 0 and up to 3600 | `{GuestConfig().gpu.sample_ttl_seconds}` |" in page


def test_every_service_rpc_message_field_and_value_of_the_contract_is_in_its_page() -> None:
    page = contract_reference.render()
    ours = set(contract.proto_files())
    found = descriptor_pb2.FileDescriptorSet.FromString(contract.image())
    seen = 0
    for file in (file for file in found.file if file.name in ours):
        for service in file.service:
            rows = section(page, service.name)
            assert [row[0] for row in rows] == [f"`{method.name}`" for method in service.method]
        for message in file.message_type:
            rows = section(page, message.name)
            assert [row[:2] for row in rows] == [[str(field.number), f"`{field.name}`"] for field in message.field]
            assert all(len(row) == 5 and row[4] for row in rows), message.name
            seen += len(rows)
        for enum in file.enum_type:
            assert [row[:2] for row in section(page, enum.name)] == [
                [str(value.number), f"`{value.name}`"] for value in enum.value
            ]
    assert seen > 60


def section(page: str, name: str) -> list[list[str]]:
    """The cells of the table under a heading, which there is once."""
    (text,) = re.findall(rf"^### {name}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_presence_is_told_for_what_zero_would_hide() -> None:
    fields = {row[1]: row for row in section(contract_reference.render(), "GpuDevice")}
    assert fields["`temperature_c`"][2:4] == ["optional `uint32`", "unset"]
    assert fields["`index`"][2:4] == ["`uint32`", "0"]
    assert fields["`errors`"][2:4] == ["list of `string`", "empty"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("<field>: a\n  b", "&lt;field>: a b"),
        ("eth* and [x]", r"eth\* and \[x\]"),
        ("`a|b*` | c", r"`a\|b*` \| c"),
    ],
)
def test_text_of_the_product_shows_in_a_cell_as_what_it_says(words: str, shown: str) -> None:
    assert cell(words) == shown
    assert table(["a"], [[cell(words)]]).count("\n") == 4
