"""The lines for a shell that help and docs/commands.md give: a real bash evaluates them, and completes with what comes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.test_pages import ROOT

LINES = {
    "guest-service": 'eval "$(_GUEST_SERVICE_COMPLETE=bash_source guest-service)"',
    "vmm-proxy": 'eval "$(_VMM_PROXY_COMPLETE=bash_source vmm-proxy)"',
    "guestctl": 'eval "$(guestctl completion bash)"',
}
CASES = [
    ("guest-service", ["ser"], {"serve"}),
    ("guest-service", ["gpu-info", "--"], {"--simulate", "--nvml-library", "--groups", "--process-names", "--help"}),
    ("guest-service", ["boot-gate", "--p"], {"--policy"}),
    ("vmm-proxy", ["serve", "--log-format", ""], {"text", "json"}),
    ("guestctl", ["t"], {"top"}),
]


@pytest.mark.parametrize(("program", "words", "offered"), CASES)
def test_the_line_of_the_pages_makes_bash_complete(program: str, words: list[str], offered: set[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is missing")
    script = f"""
        {LINES[program]}
        COMP_WORDS=({program} {" ".join(word or "''" for word in words)})
        COMP_CWORD={len(words)}
        function_of=$(complete -p {program})
        function_of=${{function_of##*-F }}
        "${{function_of%% *}}" {program}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "--norc", "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=50
    )
    assert (done.stderr, set(done.stdout.split())) == ("", offered)


@pytest.mark.parametrize("program", LINES)
def test_the_line_stands_on_the_page_and_in_the_help(program: str) -> None:
    assert LINES[program] in (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    arguments = ["completion", "--help"] if program == "guestctl" else ["--help"]
    done = subprocess.run(
        [Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True, check=True, timeout=50
    )
    assert LINES[program] in re.sub(r"  +", " ", done.stdout)
