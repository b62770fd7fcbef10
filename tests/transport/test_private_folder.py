"""The folder for sockets that only one process uses: where it cannot be made, that is said in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from guest_transport.unix_sockets import PrivateFolder

# With no byte that may be written to a file, no folder for temporary files counts as usable: as on a read-only machine or a full disk.
PROXY = """
import resource, signal, sys
from vmm_proxy.__main__ import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(main())
"""


def test_a_proxy_that_can_write_no_temporary_file_says_where_it_tried_and_what_to_set(tmp_path: Path) -> None:
    arguments = ("serve", "--http", "off", "--grpc", f"unix:{tmp_path}/s")
    done = subprocess.run([sys.executable, "-c", PROXY, *arguments], check=False, capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "cannot make a private folder for sockets: No usable temporary directory found in [" in done.stderr
    assert "set TMPDIR" in done.stderr


def test_a_private_folder_is_its_owners_and_goes_with_what_is_in_it() -> None:
    folder = PrivateFolder()
    inside = Path(folder.file("s"))
    try:
        assert inside.parent.stat().st_mode & 0o777 == 0o700
        inside.touch()
    finally:
        folder.close()
    assert not inside.parent.exists()
