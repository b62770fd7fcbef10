"""What a page shows of one guest, for the guest's own page and for its page in the fleet: made here once, so that they cannot drift apart.

    view        messages of the contract -> words and bar lengths
    templates   the head and bar of every page, and the sections of a guest
    assets      the script that keeps a guest's page fresh

It knows the contract, the words and how pages are made, and neither server.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent
TEMPLATES = _HERE / "templates"
ASSETS = _HERE / "assets"
