"""What the kernel says of a file: kind, mode, whose it is, and whether this user may use it. Opens nothing.

Judged as this process's effective user, because that is who would use it; the report of another user is that of another user.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file that is there. `mode` without its kind."""

    path: Path
    kind: int
    mode: int
    uid: int
    gid: int

    @property
    def is_socket(self) -> bool:
        """Whether it is a Unix socket."""
        return stat.S_ISSOCK(self.kind)

    @property
    def is_regular(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.kind)

    @property
    def owners(self) -> str:
        """User and group, and the mode: `root:video 0660`."""
        return f"{user_name(self.uid)}:{group_name(self.gid)} {self.mode:04o}"


def read_facts(path: Path) -> FileFacts | OSError:
    """The facts of what lies at `path`, links followed; the reason when there is nothing, or it may not be looked at. Blocks."""
    try:
        found = path.stat()
    except OSError as error:
        return error
    except ValueError as error:
        return OSError(0, str(error))
    return FileFacts(path, stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)


def may(path: Path, how: int) -> bool:
    """Whether this process may `how` (os.R_OK, os.W_OK, os.X_OK, or several) `path`."""
    return os.access(path, how, effective_ids=True)


def this_user() -> str:
    """Who judges."""
    return user_name(os.geteuid())


def user_name(uid: int) -> str:
    """The user's name, or the number where it has none here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The group's name, or the number where it has none here."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
