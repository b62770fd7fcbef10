"""The arguments of `guest-service gpu-info`, read by hand: argparse and click cost more than a fifth of a sample's CPU time.

It refuses everything that it does not know, and a simulated rack together with a real library. Two arguments are the agent's alone and
no part of the help: `--ask-last LIST` and `--parts-to DESCRIPTOR` (parts.py).
"""

USAGE = """\
Usage: guest-service gpu-info [--simulate RACK] [--nvml-library FILE] [--groups LIST]

Take one sample of the GPUs and print it as one line of JSON (the contract's GpuInfoResponse).

  --simulate RACK      sample a simulated rack: h200, h200x8, none, no-driver, sick-h200x8, or a TOML file
  --nvml-library FILE  load NVML from exactly this file instead of libnvidia-ml.so.1
  --groups LIST        ask for these groups of values beside the base values, with commas between:
                       {groups}
  --process-names DIR  tell the names of the processes in the group processes, read from this procfs (/proc)
  --help               show this text

Exit status: 0 with a result ("no driver" is one), 1 when stdout cannot be written, 2 for wrong arguments or a refused rack."""


def usage() -> str:
    """The help; the groups are those of the table, which no sample waits for before NVML starts."""
    from guest_contract.card_fields import GROUPS  # noqa: PLC0415 (as said)

    return USAGE.format(groups=", ".join(GROUPS))


class ArgumentsError(Exception):
    """The arguments are refused; the text is one line."""


class Arguments:
    """What was asked for."""

    __slots__ = ("ask_last", "groups", "help", "nvml_library", "parts_to", "process_names", "simulate")

    def __init__(self) -> None:
        self.help = False
        self.simulate: str | None = None
        self.nvml_library: str | None = None
        self.groups: tuple[str, ...] = ()
        self.process_names: str | None = None
        self.ask_last: tuple[str, ...] = ()
        self.parts_to: int | None = None


TAKE_A_VALUE = ("--simulate", "--nvml-library", "--groups", "--process-names", "--ask-last", "--parts-to")


def parse(argv: list[str]) -> Arguments:
    """The arguments in `argv` (without the command's name); raises ArgumentsError."""
    found = Arguments()
    rest = iter(argv)
    for argument in rest:
        name, given, value = argument.partition("=")
        if argument in ("--help", "-h"):
            found.help = True
        elif name in TAKE_A_VALUE:
            if not given:
                value = next(rest, "")
            if not value:
                raise ArgumentsError(f"{name} needs a value; see --help")
            _take(found, name, value)
        else:
            raise ArgumentsError(f"unknown argument {argument[:80]!r}; see --help")
    if found.groups and found.parts_to is None:
        _check_groups(found.groups)
    if found.simulate is not None and found.nvml_library is not None:
        raise ArgumentsError("--simulate and --nvml-library exclude each other")
    return found


def _check_groups(groups: tuple[str, ...]) -> None:
    """The agent's are of its configuration, which is checked: its sample does not wait for the table before NVML starts."""
    from guest_contract.card_fields import GROUPS  # noqa: PLC0415 (as said)

    for group in groups:
        if group not in GROUPS:
            raise ArgumentsError(f"--groups knows {', '.join(GROUPS)}, not {group[:80]!r}")


def _take(found: Arguments, name: str, value: str) -> None:
    if name == "--simulate":
        found.simulate = value
    elif name == "--nvml-library":
        found.nvml_library = value
    elif name == "--groups":
        found.groups = tuple(dict.fromkeys(value.split(",")))
    elif name == "--process-names":
        found.process_names = value
    elif name == "--ask-last":
        found.ask_last = tuple(value.split(","))
        if not all(item == "-" or item.isdecimal() for item in found.ask_last):
            raise ArgumentsError(f"{name} takes indices and '-', not {value[:80]!r}")
    elif value.isdecimal():
        found.parts_to = int(value)
    else:
        raise ArgumentsError(f"{name} takes a descriptor, not {value[:80]!r}")
