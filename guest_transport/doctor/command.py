"""From checks to the printed report and the exit status, for both commands.

The parts of the product that are run here log as they do in a server; the report has their words already, so the log is silent. Exit status
0: nothing is wrong, 1: something is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence

from guest_transport.doctor.checks import Check, Examined, MachineT, run_checks
from guest_transport.doctor.findings import note
from guest_transport.doctor.report import anything_wrong, as_json, as_text
from guest_transport.process.grpc_environment import prepare_grpc

SOUND, WRONG = 0, 1


def examine(checks: Sequence[Check[MachineT]], machine: MachineT, *, output: str, refused: Callable[[MachineT], bool]) -> int:
    """Run `checks`, print the report in the form `output`, return the exit status.

    Where the configuration is refused, the checks that need it are left out, and the report says so.
    """
    logging.disable(logging.CRITICAL)
    prepare_grpc()
    left_out = [check.name for check in checks if refused(machine) and not check.without_config]
    runner = asyncio.Runner()
    report = runner.run(run_checks([check for check in checks if check.name not in left_out], machine))
    if left_out:
        report.append(Examined("config", (note(f"not looked at until the configuration is right: {', '.join(left_out)}"),)))
    # A guest's letters may be none of this terminal's.
    encoding = sys.stdout.encoding or "utf-8"
    text = as_json(report) if output == "json" else as_text(report)
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    status = WRONG if anything_wrong(report) else SOUND
    if any(examined.hung for examined in report):
        # Closing the loop, and the interpreter's own end, would wait for the read that hangs.
        sys.stdout.flush()
        os._exit(status)
    runner.close()
    return status
