"""One proxy, or several at the same time, of which one that gives no answer is a row and no failure of the others.

A guest of several hosts is called HOST/ID, which no id is by itself (an id has no slash), and which every command takes. With one proxy
ids are ids, and its failure is the command's. Rejected: one process for each host (a shell has xargs),
and a proxy of proxies (nothing of ours stands between hosts).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from google.rpc import code_pb2, status_pb2

from guest_client.async_client import AsyncProxyClient
from guest_client.errors import CallError, ClientError
from guest_client.guestctl import connect
from guest_client.guestctl.request import Chosen, Proxy, Question

# What else waits; a host that hangs holds its place for the bound of one call. Each has a socket or two and a TLS handshake.
HOSTS_AT_ONCE = 64


class NoSuchGuestError(Exception):
    """Guests were asked for by id or label, and no proxy that was asked knows such; the message names what was asked for."""


class HostsFailedError(Exception):
    """Some of several hosts gave no answer; what the others said was shown. `error` is that of the first."""

    def __init__(self, failures: Mapping[str, ClientError], asked: int) -> None:
        self.error = next(iter(failures.values()))
        super().__init__(f"{len(failures)} of {asked} hosts gave no answer: {_first(failures)}")


def called(host: str, guest_id: str) -> str:
    """What a guest is called: its id, and before it its host where there are several."""
    return f"{host}/{guest_id}" if host else guest_id


@dataclass(frozen=True, slots=True)
class HostQuestion:
    """What one of the proxies is asked: the question as if it were the only one. `host` is empty where it is."""

    host: str
    question: Question

    @property
    def chosen(self) -> Chosen:
        """Which of its guests."""
        return self.question.chosen or Chosen()

    def named(self, guest_id: str) -> str:
        """What a guest of this host is called."""
        return called(self.host, guest_id)


def each_host(question: Question) -> list[HostQuestion]:
    """The questions, in the order in which the proxies were named; none to a host of which no guest is meant."""
    if not question.proxies:
        return [HostQuestion("", question)]
    found = [_for(question, proxy) for proxy in question.proxies]
    return [each for each in found if each is not None]


def _for(question: Question, proxy: Proxy) -> HostQuestion | None:
    chosen = question.chosen or Chosen()
    ids = tuple(guest_id for host, _, guest_id in (each.rpartition("/") for each in chosen.ids) if host in {"", proxy.host})
    if chosen.ids and not ids:
        return None
    asked = replace(question, address=proxy.address, access=proxy.access, proxies=(), chosen=replace(chosen, ids=ids))
    return HostQuestion(proxy.host, asked)


async def ask_each(
    questions: Iterable[HostQuestion], ask: Callable[[HostQuestion, AsyncProxyClient], Awaitable[None]]
) -> dict[str, ClientError]:
    """Ask all hosts at once; the failures by host. Raises ClientError where there is one proxy, and what else `ask` raises."""
    places = asyncio.Semaphore(HOSTS_AT_ONCE)
    failures: dict[str, ClientError] = {}

    async def one(asked: HostQuestion) -> None:
        async with places:
            try:
                async with await connect.async_proxy_client(asked.question) as proxy:
                    await ask(asked, proxy)
            except ClientError as error:
                if not asked.host:
                    raise
                failures[asked.host] = error

    every = list(questions)
    tasks = [asyncio.create_task(one(each)) for each in every]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {each.host: failures[each.host] for each in every if each.host in failures}


def status_of(error: ClientError) -> status_pb2.Status:
    """Why a host gave no answer, in the form in which a guest's failure comes."""
    if isinstance(error, CallError):
        number: int = error.code.value[0]
        return status_pb2.Status(code=number, message=error.reason)
    return status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=str(error))


def require_chosen(chosen: Chosen, found: Collection[str]) -> None:
    """Raise NoSuchGuestError when an id of `chosen` is not among `found`, or its labels have chosen nobody.

    A guest of several hosts is found by its id too.
    """
    known = {*found, *(name.rpartition("/")[2] for name in found)}
    missing = [guest_id for guest_id in chosen.ids if guest_id not in known]
    if missing:
        having = f" with {Chosen(labels=chosen.labels)}" if chosen.labels else ""
        raise NoSuchGuestError(f"the proxy knows no guest {', '.join(missing)}{having}")
    if chosen.labels and not found:
        raise NoSuchGuestError(f"the proxy knows no guest with {chosen}")


def require_answers(failures: Mapping[str, ClientError], question: Question, found: Collection[str]) -> None:
    """Raise HostsFailedError, or NoSuchGuestError where every host has answered and none knows a guest that was meant."""
    if failures:
        raise HostsFailedError(failures, len(each_host(question)))
    require_chosen(question.chosen or Chosen(), found)


# More names than that are no line.
_NAMED_LIMIT = 5


def _first(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMED_LIMIT} more" if len(names) > _NAMED_LIMIT else ""
    return f"{', '.join(list(names)[:_NAMED_LIMIT])}{more}"
