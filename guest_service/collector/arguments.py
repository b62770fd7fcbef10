"""The arguments of `guest-service gpu-info`, read by hand: argparse and click cost more than a fifth of a sample's CPU time.

It refuses everything that it does not know, and a simulated rack together with a real library.
"""

USAGE = """\
Usage: guest-service gpu-info [--simulate RACK] [--nvml-library FILE]

Take one sample of the GPUs and print it as one line of JSON (the contract's GpuInfoResponse).

  --simulate RACK      sample a simulated rack: h200, h200x8, none, no-driver, or a TOML file
  --nvml-library FILE  load NVML from exactly this file instead of libnvidia-ml.so.1
  --help               show this text

Exit status: 0 with a result ("no driver" is one), 1 when stdout cannot be written, 2 for wrong arguments or a refused rack.
"""


class ArgumentsError(Exception):
    """The arguments are refused; the text is one line."""


class Arguments:
    """What was asked for."""

    __slots__ = ("help", "nvml_library", "simulate")

    def __init__(self) -> None:
        self.help = False
        self.simulate: str | None = None
        self.nvml_library: str | None = None


def parse(argv: list[str]) -> Arguments:
    """The arguments in `argv` (without the command's name); raises ArgumentsError."""
    found = Arguments()
    rest = iter(argv)
    for argument in rest:
        name, given, value = argument.partition("=")
        if argument in ("--help", "-h"):
            found.help = True
        elif name in ("--simulate", "--nvml-library"):
            if not given:
                value = next(rest, "")
            if not value:
                raise ArgumentsError(f"{name} needs a value; see --help")
            if name == "--simulate":
                found.simulate = value
            else:
                found.nvml_library = value
        else:
            raise ArgumentsError(f"unknown argument {argument[:80]!r}; see --help")
    if found.simulate is not None and found.nvml_library is not None:
        raise ArgumentsError("--simulate and --nvml-library exclude each other")
    return found
