"""A small guest on disk: the files of /proc that SystemFacts reads, as a Debian 12 guest had them in November 2026."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "meminfo": "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
    "loadavg": "0.29 1.00 12.34 1/234 5678\n",
    "uptime": "90061.50 1.00\n",
    "stat": "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 1\n",
    "cpuinfo": "processor: 0\nmodel name: Test  CPU\n",
    "sys/kernel/osrelease": "6.1.0-test\n",
    "self/mounts": "/dev/vda / ext4 rw 0 0\n",
    "net/dev": "head\nhead\n  eth0: 1 0 2 0 0 0 0 0 3 0 4 0 0 0 0 0\n  docker0: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n",
}


def make_procfs(root: Path, **changed: str) -> Path:
    """A /proc below `root`; `changed` replaces a file (its name with _ for /), "" removes it."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(name.replace("/", "_"), text))
        if changed.get(name.replace("/", "_")) == "":
            path.unlink()
    return root
