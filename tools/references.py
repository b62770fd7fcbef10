"""The pages that are generated, and `make reference`, which writes all of them; a test compares each with a fresh generation.

The list stands once, here, so that a page that is added cannot be forgotten by the test or by the target.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools import command_reference, configuration_reference, contract_reference, health_reference, metrics_reference

# How each page is made now.
PAGES: Mapping[Path, Callable[[], str]] = {
    module.FILE: module.render
    for module in (command_reference, configuration_reference, contract_reference, health_reference, metrics_reference)
}


def main() -> None:
    """Write the pages that have changed, and name them."""
    for file, render in PAGES.items():
        text = render()
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}\n")


if __name__ == "__main__":
    main()
