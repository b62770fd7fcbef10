"""Asks what a Question says and shows the answer. The one place where a ClientError becomes a line and an exit status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from guest_api import guest_api_pb2
from guest_client.errors import (
    CallError,
    ClientError,
    CredentialsError,
    DeadlineError,
    GuestNotFoundError,
    InvalidAddressError,
    UnavailableError,
)
from guest_client.guestctl import card, connect
from guest_client.guestctl.fleet import collecting, health, listing, several, watching
from guest_client.guestctl.output import csv_view, json_view, stdout, tables
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Output, Question, Subject
from guest_client.guestctl.top import plain

EXIT_STATUS: dict[type[ClientError], int] = {
    InvalidAddressError: 2,
    CredentialsError: 2,
    GuestNotFoundError: 3,
    UnavailableError: 4,
    DeadlineError: 5,
}


class CallFailed(Exception):  # noqa: N818 - an outcome of the command; the errors stand in guest_client.errors
    """The question has no answer; one line says why, and the exit status which kind of failure it was."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def answer(question: Question, say: Say) -> None:
    """Ask and show, with remarks on what is not shown to `say`; raises CallFailed, OutputError."""
    try:
        _answer(question, say)
    except several.HostsFailedError as error:
        raise CallFailed(str(error), EXIT_STATUS.get(type(error.error), 1)) from error
    except (several.NoSuchGuestError, card.NoSuchCardError) as error:
        raise CallFailed(str(error), EXIT_STATUS[GuestNotFoundError]) from error
    except card.CardsUnknownError as error:
        raise CallFailed(str(error), 1) from error
    except ClientError as error:
        raise CallFailed(f"{error}{_hint(error, question)}", EXIT_STATUS.get(type(error), 1)) from error


def _answer(question: Question, say: Say) -> None:
    match question.subject:
        case Subject.LIST:
            listing.show(question, say)
        case Subject.TOP:
            ended_by = asyncio.run(plain.run(question, say))
            if ended_by is not None:
                raise CallFailed("", 128 + ended_by)
        case Subject.WATCH:
            asyncio.run(watching.run(question, say))
        case Subject.HEALTH:
            if not health.show(question, say):
                raise CallFailed("", health.CARDS_NOT_OK)
        case Subject.GPU if question.chosen is not None:
            collecting.show(question, say)
        case _:
            reply, gpus_given = _ask(question)
            stdout.write(_text(question, reply, gpus_given))
            UnknownFields(say).look_at(reply)


def _text(question: Question, reply: Message, gpus_given: int | None) -> str:
    if question.subject is Subject.CARD and isinstance(reply, guest_api_pb2.GpuInfoResponse):
        return card.text(question, reply)
    if question.output is Output.JSON:
        return json_view.to_text(json_view.view(reply))
    if question.output is Output.CSV and isinstance(reply, guest_api_pb2.GpuInfoResponse):
        return csv_view.to_text([csv_view.CARD_COLUMNS, *csv_view.cards(question.vm_id or "", reply, given=gpus_given)])
    if question.output is Output.CSV and isinstance(reply, guest_api_pb2.ListContainersResponse):
        return csv_view.to_text(csv_view.containers(reply))
    return tables.show(reply, question.vm_id, gpus_given)


def _hint(error: ClientError, question: Question) -> str:
    """What to look at, where a server was not reached."""
    if not isinstance(error, CallError) or not error.reason.startswith("cannot connect"):
        return ""
    if error.reason == "cannot connect: Socket closed" and not question.address.startswith(("unix:", "vsock:", "hvsock:")):
        # A TLS server that meets a plain client, or one without a certificate, says nothing and hangs up.
        return (
            " (does the server want a certificate? give --cert and --key)"
            if question.access.tls
            else (" (does the server want TLS? give --ca or --tls)")
        )
    return "" if "TLS:" in error.reason else " (is the address right, and does a server listen there?)"


def _ask(question: Question) -> tuple[Message, int | None]:
    """The answer, and how many cards the host gave to the guest, where that is shown and the proxy knows."""
    max_age = question.max_age_seconds
    calls: dict[Subject, Callable[[], Message]]
    if question.vm_id is None:
        with connect.guest_client(question) as guest:
            calls = {
                Subject.GPU: partial(guest.gpu_info, max_age_seconds=max_age),
                Subject.CARD: partial(guest.gpu_info, max_age_seconds=max_age),
                Subject.INFO: guest.info,
                Subject.SYS: guest.sys_info,
                Subject.NET: guest.network_info,
                Subject.CONTAINERS: guest.list_containers,
                Subject.SHUTDOWN: guest.shutdown,
            }
            return calls[question.subject](), None
    with connect.proxy_client(question) as proxy:
        calls = {
            Subject.GPU: partial(proxy.gpu_info, question.vm_id, max_age_seconds=max_age),
            Subject.CARD: partial(proxy.gpu_info, question.vm_id, max_age_seconds=max_age),
            Subject.INFO: partial(proxy.info, question.vm_id),
            Subject.SYS: partial(proxy.sys_info, question.vm_id),
            Subject.NET: partial(proxy.network_info, question.vm_id),
            Subject.CONTAINERS: partial(proxy.list_containers, question.vm_id),
            Subject.SHUTDOWN: partial(proxy.shutdown, question.vm_id),
        }
        reply = calls[question.subject]()
        shows_cards = question.subject is Subject.GPU and question.output is not Output.JSON
        return reply, listing.gpus_given(proxy, question.vm_id) if shows_cards else None
