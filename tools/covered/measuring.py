"""Starts a command so that every Python process below it is measured, whatever its working directory and its flags.

coverage.py's own hook (a .pth file that looks for COVERAGE_PROCESS_START) reaches each interpreter but the collector's, which runs with
-I -S. So sys.executable of a measured process is a small program that puts tools/covered/start/collector.py in their place and passes
everything else on. Not measured: what is killed with -9, and what runs from an installed copy. Rejected: `coverage run` (the pytest process
only) and its patch = subprocess (the same hook, and each process would look for files that nothing imported).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "coverage"
DATA = FOLDER / "data"
PACKAGES = ("guest_service", "vmm_proxy", "guest_client", "guest_metrics", "guest_pages", "guest_contract", "guest_transport")
START = Path(__file__).with_name("start")

INTERPRETER = """\
#!/bin/sh
# The interpreter of a measured run.
if [ "$1 $2" = "-I -S" ] && [ -f "$3" ]; then
  shift 2
  exec {python} -I {collector} "$@"
fi
exec {python} "$@"
"""

CONFIG = """\
[tool.coverage.run]
branch = true
parallel = true
data_file = {data}
include = {include}
# os._exit ends gpu-info and the workers of pytest.
patch = ["_exit"]
# Tests compare what a process writes to stderr.
disable_warnings = ["no-data-collected", "module-not-measured", "already-imported", "trace-changed", "couldnt-parse"]
"""


def measure(command: Sequence[str]) -> int:
    """Run `command` (a Python and its arguments follow from it) and leave the data of all its processes in DATA; its exit status."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "bin").mkdir(parents=True)
    DATA.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {
        "COVERAGE_PROCESS_START": str(_write_config()),
        "COVERED_INTERPRETER": str(_write_interpreter()),
        "PYTHONPATH": str(START),
    }
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False).returncode


def _write_config() -> Path:
    config = FOLDER / "coverage.toml"
    include = [f"{ROOT / package}/*" for package in PACKAGES]
    config.write_text(CONFIG.format(data=json.dumps(str(DATA / "process")), include=json.dumps(include)))
    return config


def _write_interpreter() -> Path:
    """A `python` with the commands of the virtual environment beside it, because tests look for them there."""
    folder = FOLDER / "bin"
    for program in Path(sys.executable).parent.iterdir():
        if not program.name.startswith("python"):
            (folder / program.name).symlink_to(program)
    interpreter = folder / "python"
    interpreter.write_text(
        INTERPRETER.format(python=shlex.quote(sys.executable), collector=shlex.quote(str(START / "collector.py")))
    )
    interpreter.chmod(0o755)
    return interpreter
