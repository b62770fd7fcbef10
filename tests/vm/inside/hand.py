"""In a Debian machine: runs, as root, what the test outside says over the second serial line, and says what came of it.

It is copied into the machine, which has nothing else of this repository, and so imports the standard library only. Rejected: a shell on
the line, whose output would have to be told from its prompts, and QEMU's guest agent, which is asked again and again for an end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import termios
import tty

LINE = "/dev/ttyS1"
# The test has a bound of its own; this one keeps the line usable.
COMMAND_LIMIT_SECONDS = 200


def run(argv: list[str]) -> dict[str, object]:
    """Exit status and what was said, both streams together."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_LIMIT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"status": -1, "said": str(error)}
    return {"status": done.returncode, "said": done.stdout.decode(errors="replace")}


def main() -> int:
    """Serve until the machine ends."""
    with open(LINE, "r+b", buffering=0) as line:
        tty.setraw(line.fileno())
        speed = termios.tcgetattr(line)
        speed[4] = speed[5] = termios.B115200
        termios.tcsetattr(line, termios.TCSANOW, speed)
        line.write(b'{"status": 0, "said": "ready"}\n')
        while request := line.readline():
            answer = json.dumps(run(json.loads(request))).encode() + b"\n"
            while answer:
                answer = answer[line.write(answer) or 0 :]
    return 0


if __name__ == "__main__":
    sys.exit(main())
