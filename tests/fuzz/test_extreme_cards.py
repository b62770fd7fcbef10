"""A guest that sends every number of a card at its extremes, and thousands of each list with markup for names, on both servers' pages.

The doors beside it vary texts; here the numbers do. Limits hold, each page parses, and nothing of the guest becomes markup.
"""

from __future__ import annotations

import math
from collections import Counter

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from guest_api.guest_api_pb2 import GpuInfoResponse, GpuProcess, MigInstance, XidCount
from guest_contract.card_fields import INSTANCES_LIMIT
from guest_metrics import gpu
from guest_metrics.exposition import Format
from guest_metrics.groups import KNOWN
from tests.fuzz.doors.markup import Skeleton
from tests.fuzz.doors.proxy_pages import pages_with
from tests.http.guests import Gpus, Guest, served
from tests.http.web import get
from tests.metrics.readers import read
from vmm_proxy.metrics.guest_answers import KEPT_ANSWER_BYTES

MARKUP = "<script>alert(1)</script>\"'\x1b[2J\u202e\n# {{7*7}}"
# XIDs, instances and processes; the proxy keeps no answer of this size for its pages, so that it gets a smaller one too.
THOUSANDS, HUNDREDS = (10_000, 5_000, 5_000), (300, 150, 150)
# A row of each list, and a card's other values: what a page has of one card, and more than it needs.
PAGE_LIMIT_BYTES = 600_000
ENDS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_BOOL: (0, 1),
}
LEAST, ZERO, ONE, MOST = "the least", "zero", "one", "the most"
EXTREMES = (LEAST, ZERO, ONE, MOST)


def set_all(message: Message, extreme: str) -> None:
    """Every number of the message at one of its ends, every text markup; lists are left alone."""
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated or field.message_type is not None:
            continue
        if field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, MARKUP)
            continue
        least, most = ENDS[field.type]
        value = {LEAST: least, ZERO: 0, ONE: 1, MOST: most}[extreme]
        setattr(message, field.name, bool(value) if field.type == FieldDescriptor.TYPE_BOOL else value)


def hostile(extreme: str, counts: tuple[int, int, int] = THOUSANDS) -> GpuInfoResponse:
    reply = GpuInfoResponse(cc_enabled=True, groups=list(KNOWN[1:]))
    card = reply.gpus.add()
    set_all(card, extreme)
    xids, instances, processes = counts
    xid, instance, process = XidCount(), MigInstance(), GpuProcess()
    for entry in (xid, instance, process):
        set_all(entry, extreme)
    card.xids.extend([xid] * xids)
    card.mig_instances.extend([instance] * instances)
    card.process_list.extend([process] * processes)
    # One number counts once: a list of ten thousand has as many.
    for number, each in enumerate(card.xids):
        each.xid = number
    return reply


def check_metrics(page: bytes, form: Format) -> None:
    samples = read(page, form)
    assert all(math.isfinite(value) for value in samples.values())
    names = Counter(name for name, _ in samples)
    assert names["dstack_gpu_xid_errors_total"] <= gpu.XIDS_LIMIT
    assert names["dstack_gpu_mig_memory_total_bytes"] <= INSTANCES_LIMIT
    assert len(page) < PAGE_LIMIT_BYTES


def check_html(page: str) -> None:
    assert len(page) < PAGE_LIMIT_BYTES
    skeleton = Skeleton(page)
    assert not [part for part in skeleton.parts if "alert" in part or "onerror" in part]
    # The page's own script is a file; none stands in the page.
    assert "<script>alert" not in page
    assert not {character for character in page if not (character.isprintable() or character == "\n")}


@pytest.mark.parametrize("extreme", EXTREMES)
async def test_the_agent_s_pages_hold_their_limits_for_a_card_of_extremes(extreme: str) -> None:
    guest = Guest(Gpus(reply=hostile(extreme)))
    every = "/metrics?" + "&".join(f"group={group}" for group in KNOWN)
    async with served(guest) as address:
        for path in ("/metrics", every):
            check_metrics((await get(address, path)).body, Format.TEXT)
            openmetrics = await get(address, path, headers={"Accept": "application/openmetrics-text"})
            check_metrics(openmetrics.body, Format.OPENMETRICS)
        for path in ("/", "/live"):
            check_html((await get(address, path)).text)


@pytest.mark.parametrize("counts", [THOUSANDS, HUNDREDS])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_the_proxy_s_pages_hold_their_limits_for_a_card_of_extremes_and_have_the_other_guest_whole(
    extreme: str, counts: tuple[int, int, int]
) -> None:
    reply = hostile(extreme, counts)
    pages = pages_with(reply, MARKUP)
    for page in (pages.metrics, pages.of_one):
        check_metrics(page, Format.OPENMETRICS)
    check_html(pages.dashboard)
    check_html(pages.rows.replace("\r", ""))
    guests = {dict(labels)["vm_id"] for name, labels in read(pages.metrics, Format.OPENMETRICS) if name == "dstack_gpu_nvml_up"}
    assert guests == ({"vm-calm", "vm-loud"} if reply.ByteSize() <= KEPT_ANSWER_BYTES else {"vm-calm"})
    assert (counts == HUNDREDS) == ("vm-loud" in guests), "one of the two sizes is on the page"
