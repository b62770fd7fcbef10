"""What the pages read from, as narrow interfaces, and the reads that several requests share.

The pages know the telemetry, the host facts and the container engine only by what they call on them, so that a test gives them fakes that
behave and a hung Docker or disk is one object here. Rejected: passing the agent itself (every page could then do everything).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from guest_api import guest_api_pb2
from guest_metrics.process import ProcessFigures, read_process
from guest_service.http.container_board import ContainerBoard
from guest_transport.http.shared_look import SharedLook, in_thread


class CardCount(Protocol):
    """The look at the PCI bus."""

    @property
    def nvidia(self) -> int:
        """NVIDIA cards on the bus."""


class SamplingStats(Protocol):
    """What sampling did so far."""

    @property
    def samples(self) -> Mapping[str, int]:
        """Samples taken, by outcome."""

    @property
    def last_duration_seconds(self) -> float | None:
        """How long the last one took; None before the first."""

    @property
    def failed_cc_queries(self) -> int:
        """Questions about confidential computing that failed in another way than not supported."""


class Telemetry(Protocol):
    """GPU telemetry, as far as pages use it: none of it waits."""

    @property
    def ready(self) -> bool:
        """Whether a first outcome is known."""

    @property
    def inventory(self) -> CardCount | None:
        """The last good look at the bus."""

    @property
    def stats(self) -> SamplingStats:
        """What sampling did so far."""

    def last(self, caller: str) -> guest_api_pb2.GpuInfoResponse:
        """The last outcome at any age; a newer one is begun behind the answer when it is due."""


class SystemReader(Protocol):
    """System facts, bounded by themselves; any exception means that they are unknown now."""

    async def read(self) -> guest_api_pb2.SystemInfo:
        """The guest now."""


class ContainerReader(Protocol):
    """The container engine; any exception means that it cannot be asked now."""

    async def list(self) -> guest_api_pb2.ListContainersResponse:
        """All containers, running or not; empty without an engine."""

    def logs(
        self, container: str, *, since: float | None, until: float | None, tail: int | None, follow: bool, timestamps: bool
    ) -> AsyncIterator[bytes]:
        """The container's output: times in unix seconds, `tail` lines from the end (None: all), `follow` goes on as it grows."""


class Switches(Protocol):
    """What HTTP shows to everybody who can connect."""

    @property
    def public_sysinfo(self) -> bool:
        """`/metrics`, and system and GPU facts on the dashboard."""

    @property
    def public_logs(self) -> bool:
        """`/logs/{container}`."""

    @property
    def public_containers(self) -> bool:
        """The container list on the dashboard and in `/metrics`."""


@dataclass(frozen=True, slots=True)
class HttpParts:
    """Everything that pages read from. Made by HttpParts.join(), ended by close()."""

    telemetry: Telemetry
    switches: Callable[[], Switches]
    engine: ContainerReader
    system: SharedLook[guest_api_pb2.SystemInfo]
    process: SharedLook[ProcessFigures]
    containers: ContainerBoard
    version: str
    now: Callable[[], float]
    # What the gRPC server refused, by reason.
    rejected: Mapping[str, int]

    @classmethod
    def join(
        cls,
        *,
        telemetry: Telemetry,
        system: SystemReader,
        engine: ContainerReader,
        switches: Callable[[], Switches],
        version: str,
        rejected: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> HttpParts:
        """Join the parts. `clock` measures how long things are kept, `now` is the wall clock for `since=10m`."""
        return cls(
            telemetry=telemetry,
            switches=switches,
            engine=engine,
            system=SharedLook("system facts", system.read),
            process=SharedLook("process figures", in_thread(read_process)),
            containers=ContainerBoard(SharedLook("container list", engine.list), clock=clock),
            version=version,
            now=now,
            rejected=rejected,
        )

    async def close(self) -> None:
        """End every read in progress."""
        await self.containers.close()
        await self.system.close()
        await self.process.close()
