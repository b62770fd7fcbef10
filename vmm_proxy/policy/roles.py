"""Roles, grants, and the caller that they were given to.

A grant is a role about the guests that its labels select. A caller holds any number of them and they add up: viewer of all and
operator of one tenant's guests is two grants. Rejected: one role and one selector per caller, which cannot say that.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vmm_proxy.directory.directory import GuestEntry


class Role(enum.IntEnum):
    """Each role may do what the lower ones may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


RoleName = Literal["viewer", "operator", "admin"]
ROLES: Mapping[RoleName, Role] = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "admin": Role.ADMIN}


@dataclass(frozen=True, slots=True)
class Grant:
    """A role about the guests that have all of `labels`; without labels about all guests."""

    role: Role
    labels: Mapping[str, str] = field(default_factory=dict)

    def covers(self, entry: GuestEntry) -> bool:
        """Whether `entry` is one of its guests."""
        return all(entry.labels.get(key) == value for key, value in self.labels.items())


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, in words for the audit log, and what was granted; an empty `grants` is somebody known who may nothing."""

    name: str
    grants: tuple[Grant, ...]

    @property
    def role(self) -> Role | None:
        """The highest role, about whichever guests."""
        return max((grant.role for grant in self.grants), default=None)

    def sees(self, entry: GuestEntry) -> bool:
        """Whether the guest exists for this caller."""
        return any(grant.covers(entry) for grant in self.grants)

    def may(self, role: Role, entry: GuestEntry) -> bool:
        """Whether what needs `role` is allowed about the guest."""
        return any(grant.role >= role and grant.covers(entry) for grant in self.grants)
