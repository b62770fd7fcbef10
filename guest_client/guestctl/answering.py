"""Asks what a Question says, and turns the answer into text; the only part of `guestctl` that calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from guest_client.errors import CallError, ClientError, DeadlineError, GuestNotFoundError, InvalidAddressError, UnavailableError
from guest_client.guestctl import json_view, tables
from guest_client.guestctl.question import Question, Subject
from guest_client.sync_client import GuestClient, ProxyClient
from guest_fleet.v1 import fleet_pb2

EXIT_STATUS: dict[type[ClientError], int] = {
    InvalidAddressError: 2,
    GuestNotFoundError: 3,
    UnavailableError: 4,
    DeadlineError: 5,
}


class CallFailed(Exception):  # noqa: N818 - an outcome of the command; the errors stand in guest_client.errors
    """The question has no answer; one line says why, and the exit status which kind of failure it was."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def answer(question: Question) -> tuple[str, str]:
    """The text to show, and a remark about it for stderr, empty in most cases; raises CallFailed."""
    try:
        reply = _list(question) if question.subject is Subject.LIST else _ask(question)
    except ClientError as error:
        reason = f"{error} (is the address right, and does a server listen there?)" if _not_there(error) else str(error)
        raise CallFailed(reason, EXIT_STATUS.get(type(error), 1)) from error
    text = json_view.to_text(json_view.view(reply)) if question.as_json else tables.show(reply, question.vm_id)
    unknown = sorted(json_view.unknown_numbers(reply))
    remark = f"not shown, because this version does not know them: fields {', '.join(unknown[:20])}" if unknown else ""
    return text, remark


def _not_there(error: ClientError) -> bool:
    return isinstance(error, CallError) and error.reason.startswith("cannot connect")


def _ask(question: Question) -> Message:
    timeout, max_age = question.timeout_seconds, question.max_age_seconds
    calls: dict[Subject, Callable[[], Message]]
    if question.vm_id is None:
        with GuestClient(question.address, timeout_seconds=timeout) as guest:
            calls = {
                Subject.GPU: partial(guest.gpu_info, max_age_seconds=max_age),
                Subject.INFO: guest.info,
                Subject.SYS: guest.sys_info,
                Subject.NET: guest.network_info,
                Subject.CONTAINERS: guest.list_containers,
                Subject.SHUTDOWN: guest.shutdown,
            }
            return calls[question.subject]()
    with ProxyClient(question.address, timeout_seconds=timeout) as proxy:
        calls = {
            Subject.GPU: partial(proxy.gpu_info, question.vm_id, max_age_seconds=max_age),
            Subject.INFO: partial(proxy.info, question.vm_id),
            Subject.SYS: partial(proxy.sys_info, question.vm_id),
            Subject.NET: partial(proxy.network_info, question.vm_id),
            Subject.CONTAINERS: partial(proxy.list_containers, question.vm_id),
            Subject.SHUTDOWN: partial(proxy.shutdown, question.vm_id),
        }
        return calls[question.subject]()


def _list(question: Question) -> Message:
    with ProxyClient(question.address, timeout_seconds=question.timeout_seconds) as proxy:
        return fleet_pb2.ListGuestsResponse(guests=proxy.list_guests())
