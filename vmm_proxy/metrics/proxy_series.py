"""The proxy's own series: its calls, its channels to guests, its directory, its process."""

from __future__ import annotations

from dataclasses import dataclass

from guest_metrics import process, table
from guest_metrics.exposition import Lines
from guest_metrics.process import ProcessFigures
from vmm_proxy.call_stats import DURATION_BOUNDS_SECONDS, CallCounts
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.sources import SourceStates
from vmm_proxy.upstream.pool import Pool


@dataclass(frozen=True, slots=True)
class OwnFigures:
    """Where the proxy's own figures come from."""

    directory: Directory
    pool: Pool
    calls: CallCounts
    sources: SourceStates

    def lines(self, looked: ProcessFigures | None) -> Lines:
        """The samples now; `looked` is the process, None when it could not be looked at."""
        lines = Lines()
        self._add_calls(lines)
        lines.add(table.PROXY_REDIALS, self.pool.redials)
        lines.add(table.PROXY_IDENTITY_MISMATCHES, self.pool.identity_mismatches)
        entries = self.directory.after()
        running = sum(entry.running for entry in entries)
        lines.add(table.PROXY_DIRECTORY_ENTRIES, running, "running")
        lines.add(table.PROXY_DIRECTORY_ENTRIES, len(entries) - running, "stopped")
        for name, state in sorted(self.sources().items()):
            lines.add(table.PROXY_DIRECTORY_REFUSED, state.refused, name)
            lines.add(table.PROXY_DIRECTORY_SOURCE_UP, int(state.readable), name)
        if looked is not None:
            process.add_process(lines, looked)
        return lines

    def _add_calls(self, lines: Lines) -> None:
        for (method, code), count in sorted(self.calls.answered.items()):
            lines.add(table.PROXY_CALLS, count, method, code)
        for method, buckets in sorted(self.calls.buckets.items()):
            lines.add_histogram(
                table.PROXY_CALL_DURATION, DURATION_BOUNDS_SECONDS, buckets, self.calls.seconds[method], (method,)
            )
        lines.add(table.PROXY_CALLS_IN_FLIGHT, self.calls.in_flight)
        for reason, count in sorted(self.calls.rejected.items()):
            lines.add(table.PROXY_REJECTED, count, reason)
