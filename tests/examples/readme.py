"""The examples as a stranger follows them: the commands of their pages, and their files moved into a folder of the test's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy/examples"
BIN = Path(sys.executable).parent
# What the examples and their commands name of a machine.
PLACES = re.compile(r"(?<![\w/.])/(?=(?:etc|run|var|srv)/)")
# Certificates of a dozen parties on a busy machine.
COMMAND_SECONDS = 120


def commands(page: Path, heading: str) -> list[str]:
    """The lines of the code blocks below the heading that begins with `heading`."""
    text = page.read_text(encoding="utf-8")
    sections = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if part.startswith(heading)]
    assert len(sections) == 1, f"{page}: {len(sections)} headings begin with {heading!r}"
    blocks = re.findall(r"^```\w*\n(.*?)^```", sections[0], re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    assert lines, f"{page}: no command below {heading!r}"
    return lines


def moved(text: str, root: Path) -> str:
    """`text` with the machine's folders below `root`."""
    return PLACES.sub(f"{root}/", text)


def copied(example: str, into: Path, root: Path) -> None:
    """The files of an example in `into`, naming folders below `root`."""
    for file in sorted((EXAMPLES / example).rglob("*")):
        target = into / file.relative_to(EXAMPLES / example)
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif file.suffix != ".md":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(moved(file.read_text(encoding="utf-8"), root), encoding="utf-8")
            target.chmod(file.stat().st_mode)


def typed(line: str, folder: Path, *, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A command as somebody types it in `folder`, with the product's commands on PATH and nothing of this machine's environment."""
    return subprocess.run(
        [*prefix, "sh", "-c", line],
        cwd=folder,
        env={"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )


def must(line: str, folder: Path, *, prefix: tuple[str, ...] = ()) -> str:
    """What a command that has to succeed prints."""
    done = typed(line, folder, prefix=prefix)
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout
