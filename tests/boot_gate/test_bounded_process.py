"""Foreign programs that do not end, do not stop talking, or leave somebody behind."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_service.boot_gate.bounded_process import STDERR_TAIL_BYTES, Finished, run_bounded
from guest_service.boot_gate.errors import UnreadableError
from tests.descriptors import descriptors

# Far over what any of these programs needs: a test in which it runs out has failed.
PLENTY_SECONDS = 40.0
LIMIT_BYTES = 100_000


def run(body: str, *, clock: Callable[[], float] | None = None) -> Finished:
    argv = [sys.executable, "-I", "-S", "-c", f"import os, signal, sys, time\n{body}"]
    if clock is None:
        return run_bounded(argv, what="verifier", seconds=PLENTY_SECONDS, stdout_limit_bytes=LIMIT_BYTES)
    return run_bounded(argv, what="verifier", seconds=PLENTY_SECONDS, stdout_limit_bytes=LIMIT_BYTES, clock=clock)


def until_it_says(pids: Path, lines: int) -> Callable[[], float]:
    """A clock that stands still until `pids` has that many lines; then all time is over."""

    def clock() -> float:
        written = pids.read_text(encoding="ascii").count("\n") if pids.exists() else 0
        return 0.0 if written < lines else PLENTY_SECONDS + 1

    return clock


def gone(pid: int) -> bool:
    """Whether the process has ended; one that waits for somebody to take note of it has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_until_gone(pid: int) -> None:
    """Return when `pid` has ended; it may be nobody's child of ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        import select

        assert select.select([handle], [], [], 20)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def test_what_it_says_and_how_it_ended_is_known() -> None:
    finished = run("sys.stdout.write('out'); sys.stderr.write('why\\nbecause\\n'); sys.exit(3)")
    assert finished == Finished(3, b"out", b"why\nbecause\n")
    assert finished.ending() == "exited with status 3: because"


def test_a_death_by_signal_is_told_from_an_exit() -> None:
    finished = run("sys.stdout.write('half'); sys.stdout.flush(); os.kill(os.getpid(), signal.SIGSEGV)")
    assert (finished.status, finished.stdout) == (-signal.SIGSEGV, b"half")
    assert finished.ending() == "ended by signal 11"


def test_a_program_that_hangs_is_killed_with_its_children_also_when_they_ignore_everything(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"""
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    os.fork()
with open({str(pids)!r}, 'a') as log:
    log.write(f'{{os.getpid()}}\\n')
print('.', flush=True)
time.sleep(1000)
"""
    with pytest.raises(UnreadableError, match=r"^verifier: no end after 40 s; killed$"):
        run(body, clock=until_it_says(pids, 4))
    found = [int(line) for line in pids.read_text(encoding="ascii").split()]
    assert len(found) == 4
    for pid in found:
        wait_until_gone(pid)
        assert gone(pid)


def test_a_program_that_stopped_itself_is_killed_too(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}}\\n'); print('.', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(UnreadableError, match="no end"):
        run(body, clock=until_it_says(pids, 1))
    assert gone(int(pids.read_text(encoding="ascii")))


def test_a_child_that_holds_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = f"""
sys.stdout.write('answer'); sys.stdout.flush()
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, b'.')
    time.sleep(1000)
os.read(reader, 1)
open({str(pid_file)!r}, 'w').write(str(os.getpid()))
"""
    assert run(body).stdout == b"answer"


def test_a_child_that_left_the_group_does_not_hold_the_gate(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    body = f"""
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.setsid()
    os.write(writer, b'.')
    time.sleep(1000)
os.read(reader, 1)
open({str(pid_file)!r}, 'w').write(str(pid))
sys.stdout.write('answer')
"""
    assert run(body).stdout == b"answer"
    escaped = int(pid_file.read_text(encoding="ascii"))
    os.kill(escaped, signal.SIGKILL)
    wait_until_gone(escaped)


def test_a_flood_is_cut_off() -> None:
    with pytest.raises(UnreadableError, match=r"^verifier: says more than 100000 bytes; killed$"):
        run("while True: os.write(1, b'x' * 65536)")


def test_a_flood_just_before_the_end_is_cut_off_as_well() -> None:
    with pytest.raises(UnreadableError, match="says more than"):
        run("import fcntl; fcntl.fcntl(1, 1031, 1 << 20); os.write(1, b'x' * 150_000)")


def test_exactly_the_limit_is_let_through() -> None:
    assert len(run(f"sys.stdout.write('x' * {LIMIT_BYTES})").stdout) == LIMIT_BYTES


def test_complaints_are_kept_from_their_end_only() -> None:
    finished = run("sys.stderr.write('x' * 1_000_000 + '\\nthe reason\\n')")
    assert len(finished.stderr_tail) == STDERR_TAIL_BYTES
    assert finished.ending() == "exited with status 0: the reason"


def test_closing_its_output_early_is_no_end() -> None:
    assert run("os.close(1); os.close(2); sys.stdin.read(); os._exit(5)").status == 5


def test_it_has_no_input_and_none_of_our_descriptors() -> None:
    leak = os.open("/dev/null", os.O_RDONLY)
    try:
        os.set_inheritable(leak, True)
        found = run("print(repr(sys.stdin.read()), sorted(os.listdir('/proc/self/fd'), key=int)[:-1])")
    finally:
        os.close(leak)
    assert found.stdout == b"'' ['0', '1', '2']\n"


@pytest.mark.parametrize("program", ["/", "/dev/null", "guestscope-no-such-program"])
def test_a_program_that_cannot_start_is_said_to(program: str) -> None:
    with pytest.raises(UnreadableError, match=f"^verifier: {program} cannot be started: "):
        run_bounded([program], what="verifier", seconds=PLENTY_SECONDS, stdout_limit_bytes=LIMIT_BYTES)


def test_a_program_that_cannot_be_watched_is_not_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    pids: list[int] = []

    def forbidden(pid: int, flags: int = 0) -> int:
        pids.append(int(started.read_text(encoding="ascii")))
        raise PermissionError(errno.EPERM, "Operation not permitted")

    # As under a sandbox that knows no pidfd_open(2).
    monkeypatch.setattr(os, "pidfd_open", forbidden)
    with pytest.raises(UnreadableError, match="verifier: cannot be watched: Operation not permitted; killed"):
        run(f"open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(1000)")
    assert gone(pids[0])


def test_no_descriptor_is_left_open() -> None:
    before = descriptors()
    run("pass")
    with pytest.raises(UnreadableError):
        run("while True: os.write(1, b'x' * 65536)")
    assert descriptors() <= before
