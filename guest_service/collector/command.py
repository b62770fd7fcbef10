"""The command that takes one sample, for the process that starts it: it imports neither the binding nor anything of NVML.

The interpreter starts without `site` and without the environment's PYTHON* variables (-I -S: 3 ms less, and a variable cannot change a
sample), so everything that it needs is named here: this package's folder by start.py's own place, the binding by its file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from guest_service.collector.binding import binding_file
from guest_service.simulator.rack import BUILT_IN_RACKS

START = Path(__file__).with_name("start.py")


def collector_command(
    *,
    nvml_library: Path | None = None,
    simulate: str | None = None,
    groups: Sequence[str] = (),
    process_names: Path | None = None,
    parent: int = 0,
) -> list[str]:
    """The argument list that takes one sample as fast as possible; the same behaviour as `guest-service gpu-info`.

    A simulated rack wins over a library: it is the more particular wish. Paths become absolute, so that the working directory is free.
    `groups` are asked beside the base values. `process_names` is the procfs where names of processes are read, None: nowhere. `parent` is
    the pid of the only process that a sample is of use to, 0 for whoever starts it.
    """
    command = [sys.executable, "-I", "-S", str(START), binding_file(sys.path), str(parent)]
    if groups:
        command += ["--groups", ",".join(groups)]
    if process_names is not None:
        command += ["--process-names", str(process_names.absolute())]
    if simulate is not None:
        return [*command, "--simulate", simulate if simulate in BUILT_IN_RACKS else str(Path(simulate).absolute())]
    if nvml_library is not None:
        return [*command, "--nvml-library", str(nvml_library.absolute())]
    return command
