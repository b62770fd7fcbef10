"""Every page of the agent, with the input as text in every string that a driver, an engine or a system chooses."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import GpuInfoResponse, ListContainersResponse
from guest_contract.card_fields import ROWS
from guest_contract.card_fields import TEXT_LIMIT as VALUE_LIMIT
from guest_contract.card_row import TEXT_VALUE
from guest_metrics.exposition import Format, label_value
from tests.fuzz.door import Door
from tests.fuzz.doors.markup import same_markup
from tests.http.guests import Engine, Gpus, Guest, System, containers, h200s, served, system_info
from tests.http.web import Answer, get
from tests.metrics.readers import Labels, read

# Far beyond what any page shows of one text, and short enough for a page with thirty of them.
TEXT_LIMIT = 20_000


class Pages(NamedTuple):
    """What was served."""

    dashboard: str
    live: str
    metrics: bytes
    openmetrics: bytes
    log: Answer


def text_of(data: bytes) -> str:
    """The text that stands for the input; a lone surrogate is in no protobuf string."""
    return data.decode("utf-8", "replace")[:TEXT_LIMIT]


def filled(message: Message, text: str) -> None:
    """Put `text` into every string of `message`, at every depth, that is there or is a list's entry."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                filled(part, text)
        elif field.type == FieldDescriptor.TYPE_STRING and field.is_repeated:
            value[:] = [text] * len(value)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, text)


def check(data: bytes) -> None:
    """The same tags, series and labels as with a quiet text; the text itself reads back from the metrics."""
    text = text_of(data)
    _check(text)


def quiet_like(text: str) -> str:
    """A text that says nothing, and that pages treat alike: what is empty is unknown, "running" is a state, what is too long is refused."""
    if text in {"", "running"}:
        return text
    return "x" if len(text) <= VALUE_LIMIT else "x" * (VALUE_LIMIT + 1)


def _check(text: str) -> None:
    expected = _quiet(quiet_like(text))
    for found, usual in zip(asyncio.run(_served(text)), expected, strict=True):
        same_markup(found.dashboard, usual.dashboard)
        same_markup(found.live, usual.live)
        same_series(found.metrics, usual.metrics, Format.TEXT, text)
        same_series(found.openmetrics, usual.openmetrics, Format.OPENMETRICS, text)
        assert found.log.headers["content-type"].startswith("text/plain"), found.log.headers
        assert found.log.headers["x-content-type-options"] == "nosniff", found.log.headers
        assert found.log.body == text.encode(), "the log is not what was written"


@functools.cache
def _quiet(text: str) -> list[Pages]:
    """The pages with a text that does no harm, made once."""
    return asyncio.run(_served(text))


def same_series(page: bytes, quiet: bytes, form: Format, text: str) -> None:
    """As many samples of each family with the same labels as on the quiet page; a card's UUID reads back as the text."""
    found, expected = read(page, form), read(quiet, form)
    assert Counter(map(_family, found)) == Counter(map(_family, expected))
    uuids = {dict(labels)["uuid"] for name, labels in found if name == "dstack_gpu_temperature_celsius"}
    assert uuids <= {as_read_back(text)}, f"the text reads back as {uuids}"


def as_read_back(text: str) -> str:
    """`text` as a parser reads it: what drives a terminal is on the page in the words of the logs (\\x1b), all else is itself."""
    words = ((character, label_value(character)) for character in text)
    return "".join(word[1:] if len(word) > 2 else character if word.startswith("\\") else word for character, word in words)


def _family(sample: tuple[str, Labels]) -> tuple[str, frozenset[str]]:
    name, labels = sample
    return name, frozenset(dict(labels))


def cards() -> GpuInfoResponse:
    """Two cards, the first with every text and list that a card has, and a value that could not be read."""
    reply = h200s(2)
    card = reply.gpus[0]
    card.errors.append("power: Not Supported")
    for row in ROWS:
        if row.unit == TEXT_VALUE:
            setattr(card, row.name, "x")
    card.mig_instances.add(gpu_instance=7, uuid="x", profile="x", memory_total_bytes=4, memory_used_bytes=1)
    card.process_list.add(pid=7, name="x")
    card.xids.add(xid=63, count=1, pci_bus_id="x")
    reply.unplaced_xids.add(xid=79, count=1, pci_bus_id="x")
    reply.driver_version = reply.cuda_driver_version = reply.nvml_version = "x"
    return reply


def failure() -> GpuInfoResponse:
    """No cards, and why."""
    return GpuInfoResponse(error="NVIDIA driver is not loaded")


async def _served(text: str) -> list[Pages]:
    """The pages with cards, and then with a failure in their place."""
    system, listed = system_info(), ListContainersResponse(containers=containers(2))
    replies = cards(), failure()
    for message in (system, listed, *replies):
        filled(message, text)
    # Ids are hexadecimal in every engine; one of them stays, so that a log can be asked for.
    listed.containers[0].id = "a" * 64
    guest = Guest(Gpus(), System(system), Engine(containers=listed.containers, output=[text.encode()]))
    pages = []
    async with served(guest) as address:
        for guest.gpus.reply in replies:
            dashboard, live = await get(address, "/"), await get(address, "/live")
            metrics = await get(address, "/metrics")
            openmetrics = await get(address, "/metrics", headers={"Accept": "application/openmetrics-text"})
            log = await get(address, f"/logs/{'a' * 64}")
            pages.append(Pages(dashboard.text, live.text, metrics.body, openmetrics.body, log))
    return pages


# What breaks pages elsewhere: markup, quotes, templates, line ends of other alphabets, what turns or hides text, what is long.
HOSTILE = (
    "<script>alert(1)</script>", "</td></tr></table><h1>", "\"><img src=x onerror='1'>", "' autofocus onfocus=1 '", "{{ 7*7 }}{% raw %}",
    "<!--",
    "<![CDATA[", "&lt;b&gt;&#60;", "\x1b[2J\x1b]0;x\x07", "\u202e\u2066gnp.exe",
    "\r\nset-cookie: a=b\r\n\r\n", "a\nb\x0bc\x85d\u2028e\u2029f",
    '"} 1\nfake_metric{a="', "\\", "\\n", '\\"', "\0", "\ufffe\U000e0001\u200b", "x" * 5000, "\u0301" * 300,
    "</textarea><svg/onload=1>", "data: x\n\nevent: y",
    "running", "javascript:alert(1)", "../../etc/passwd", "%2e%2e%2f", "\t ", "é",
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=30), st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=4)), max_size=4).map("".join)
)
WORDS = tuple(text.encode() for text in HOSTILE if len(text) < 100)

AGENT_PAGES = Door("agent-pages", check, TEXTS.map(str.encode), words=WORDS, examples=8)
