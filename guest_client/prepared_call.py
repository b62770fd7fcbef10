"""Prepared calls, and the descriptors that make one written method serve the synchronous and the asynchronous client alike.

A method of `guest_client.methods` prepares its call and does not make it. Who makes it is the client on which the method is found: `Unary`
and `Many` are descriptors which type checkers follow, so that `GuestClient.info()` returns a GuestInfo and `AsyncGuestClient.info()`
a coroutine of one, both with the signature that was written once. Nothing here opens a channel.

Rejected: a second list of methods kept by hand (the two drift apart), and one generated from the other (a reader meets every method twice).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, overload

import grpc
from google.protobuf.message import Message

from guest_client.errors import CallError, failure
from guest_transport.addresses import Address

P = ParamSpec("P")
ReplyT = TypeVar("ReplyT", bound=Message)
ItemT = TypeVar("ItemT", bound=Message)


@dataclass(frozen=True, slots=True)
class Ask(Generic[ReplyT]):
    """A call that is ready to be made; `about` names it in errors, `timeout_seconds` is None for a stream that has no end."""

    path: str
    request: Message
    reply: type[ReplyT]
    about: str
    timeout_seconds: float | None
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream(Generic[ReplyT, ItemT]):
    """A call whose replies come one after the other, and what is taken out of each."""

    ask: Ask[ReplyT]
    items: Callable[[ReplyT], Iterable[ItemT]]


@dataclass(frozen=True, slots=True)
class Pages(Generic[ReplyT, ItemT]):
    """A call that is made again for each page: the ask for a page token, what stands on a page, and the token of the next one."""

    ask: Callable[[str], Ask[ReplyT]]
    items: Callable[[ReplyT], Iterable[ItemT]]
    next_token: Callable[[ReplyT], str]


# The type of the replies is of no interest to who iterates; each Stream and Pages holds it together by itself.
Items: TypeAlias = Stream[Any, ItemT] | Pages[Any, ItemT]


def checked(ask: Ask[ReplyT], reply: object, address: Address) -> ReplyT:
    """`reply` if it is one: grpc.aio 1.85 gives None with status OK for a reply that does not decode."""
    if isinstance(reply, ask.reply):
        return reply
    raise failure(grpc.StatusCode.INTERNAL, "the reply does not decode", method=ask.about, address=str(address))


def waited_too_long(ask: Ask[Any], address: Address) -> CallError:
    """The error of a call whose time ended while it waited for others of its client to end."""
    text = "its time ended before it was made: the client has as many calls in progress as it may"
    return failure(grpc.StatusCode.DEADLINE_EXCEEDED, text, method=ask.about, address=str(address))


def following_token(pages: Pages[ReplyT, Any], reply: ReplyT, token: str, address: Address) -> str:
    """The token of the page after the one that `token` asked for, empty after the last; a list that runs in a circle is refused."""
    following = pages.next_token(reply)
    if following and following == token:
        about = pages.ask(token).about
        raise failure(
            grpc.StatusCode.INTERNAL, "the list never ends: one page token came twice", method=about, address=str(address)
        )
    return following


class AsyncCaller(ABC):
    """A client whose calls are awaited."""

    # What a call may take when it names no bound itself; None leaves the bound of its method.
    default_timeout_seconds: float | None

    @abstractmethod
    async def call(self, ask: Ask[ReplyT]) -> ReplyT:
        """Make one call; raises a ClientError."""

    @abstractmethod
    def iterate(self, items: Items[ItemT]) -> AsyncGenerator[ItemT, None]:
        """Make a call of many items; raises a ClientError while iterating."""


class SyncCaller(ABC):
    """A client whose calls block."""

    default_timeout_seconds: float | None

    @abstractmethod
    def call(self, ask: Ask[ReplyT]) -> ReplyT:
        """Make one call; raises a ClientError."""

    @abstractmethod
    def iterate(self, items: Items[ItemT]) -> Generator[ItemT, None, None]:
        """Make a call of many items; raises a ClientError while iterating."""


class Unary(Generic[P, ReplyT]):
    """Decorates a method that prepares a call with one reply."""

    def __init__(self, prepare: Callable[Concatenate[Any, P], Ask[ReplyT]]) -> None:
        @functools.wraps(prepare)
        async def awaited(client: AsyncCaller, *args: P.args, **kwargs: P.kwargs) -> ReplyT:
            return await client.call(prepare(client, *args, **kwargs))

        @functools.wraps(prepare)
        def blocked(client: SyncCaller, *args: P.args, **kwargs: P.kwargs) -> ReplyT:
            return client.call(prepare(client, *args, **kwargs))

        self._awaited, self._blocked = awaited, blocked
        self.__wrapped__ = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type[object]) -> Self: ...
    @overload
    def __get__(self, client: AsyncCaller, owner: type[object]) -> Callable[P, Coroutine[Any, Any, ReplyT]]: ...
    @overload
    def __get__(self, client: SyncCaller, owner: type[object]) -> Callable[P, ReplyT]: ...
    def __get__(
        self, client: AsyncCaller | SyncCaller | None, owner: type[object]
    ) -> Self | Callable[P, Coroutine[Any, Any, ReplyT]] | Callable[P, ReplyT]:
        """The method, bound to `client`."""
        if client is None:
            return self
        return MethodType(self._awaited if isinstance(client, AsyncCaller) else self._blocked, client)


class Many(Generic[P, ItemT]):
    """Decorates a method that prepares a call of many items: a stream, or a list that comes in pages."""

    def __init__(self, prepare: Callable[Concatenate[Any, P], Items[ItemT]]) -> None:
        @functools.wraps(prepare)
        def iterated(client: AsyncCaller | SyncCaller, *args: P.args, **kwargs: P.kwargs) -> Any:
            return client.iterate(prepare(client, *args, **kwargs))

        self._iterated = iterated
        self.__wrapped__ = prepare
        self.__doc__ = prepare.__doc__

    @overload
    def __get__(self, client: None, owner: type[object]) -> Self: ...
    @overload
    def __get__(self, client: AsyncCaller, owner: type[object]) -> Callable[P, AsyncGenerator[ItemT, None]]: ...
    @overload
    def __get__(self, client: SyncCaller, owner: type[object]) -> Callable[P, Generator[ItemT, None, None]]: ...
    def __get__(
        self, client: AsyncCaller | SyncCaller | None, owner: type[object]
    ) -> Self | Callable[P, AsyncGenerator[ItemT, None]] | Callable[P, Generator[ItemT, None, None]]:
        """The method, bound to `client`."""
        return self if client is None else MethodType(self._iterated, client)
