"""Lines made from forms are those that are made one by one, whatever a guest answers."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, MigInstance, SystemInfo, XidCount
from guest_metrics import forms, gpu, guest, table
from guest_metrics.exposition import Lines
from guest_metrics.forms import Filled, KeptForm, Sheet

OWN = {"vm_id": "vm-1", "vm_rack": 'r"7%s\\'}
TEXT = st.text(max_size=6) | st.sampled_from(["", "GPU-1", "%d %s", "a\nb", 'x"y\\', "\0\n", "\u2028", " 1\n"])
U32 = st.none() | st.integers(0, 2**32 - 1) | st.just(0)
U64 = st.none() | st.integers(0, 2**64 - 1) | st.just(0)


def given_fields(**fields: int | None) -> dict[str, int]:
    return {name: value for name, value in fields.items() if value is not None}


XIDS = st.lists(
    st.builds(XidCount, xid=st.sampled_from([13, 48, 63, 79]), count=st.integers(0, 2), nvswitch=st.booleans(), pci_bus_id=TEXT),
    max_size=3,
)


INSTANCES = st.builds(
    MigInstance,
    gpu_instance=st.integers(0, 2),
    compute_instance=st.none() | st.integers(0, 1),
    profile=TEXT,
    memory_total_bytes=U64,
    memory_used_bytes=U64,
)


@st.composite
def gpu_replies(draw: st.DrawFn) -> GpuInfoResponse:
    reply = GpuInfoResponse(error=draw(st.sampled_from(["", "", "no driver"])))
    for field in ("cc_enabled", "cc_ready", "cc_devtools"):
        if (value := draw(st.none() | st.booleans())) is not None:
            setattr(reply, field, value)
    if (cards := draw(U32)) is not None:
        reply.pci_devices = cards
    for _ in range(draw(st.integers(0, 3))):
        small = given_fields(
            utilization_gpu=draw(U32), utilization_memory=draw(U32), temperature_c=draw(U32), power_usage_mw=draw(U32)
        )
        big = given_fields(memory_total_bytes=draw(U64), memory_used_bytes=draw(U64), memory_free_bytes=draw(U64))
        card = {"index": draw(st.integers(0, 2)), "uuid": draw(TEXT), "pci_bus_id": draw(TEXT)}
        texts = {name: draw(TEXT) for name in ("name", "vbios_version") if draw(st.booleans())}
        instances = draw(st.lists(INSTANCES, max_size=2))
        listed = {"errors": draw(st.lists(TEXT, max_size=2)), "xids": draw(XIDS), "mig_instances": instances}
        reply.gpus.add(**card, **small, **big, **texts, **listed)
    if (driver := draw(st.none() | TEXT)) is not None:
        reply.driver_version = driver
    reply.groups.extend(draw(st.sampled_from([[], ["health"]])))
    reply.unplaced_xids.extend(draw(XIDS))
    return reply


@st.composite
def system_infos(draw: st.DrawFn) -> SystemInfo:
    info = SystemInfo(os_name=draw(TEXT), kernel_version=draw(TEXT))
    for field in SystemInfo.DESCRIPTOR.fields:
        if 5 <= field.number <= 16:
            setattr(info, field.name, draw(st.integers(0, 2**32 - 1)))
    for _ in range(draw(st.integers(0, 3))):
        sizes = {"total_size": draw(st.integers(0, 3)), "free_size": draw(st.integers(0, 3))}
        info.disks.add(name=draw(TEXT), mount_point=draw(TEXT), **sizes)
    for _ in range(draw(st.integers(0, 2))):
        info.cpu_times.add(mode=draw(TEXT), seconds=draw(st.floats()))
        info.network.add(interface=draw(TEXT), received_bytes=draw(st.integers(0, 2**64 - 1)))
    return info


def one_by_one(replies: Sequence[GpuInfoResponse], infos: Sequence[SystemInfo]) -> dict[str, str]:
    """What each family's lines are when every source's lines are made the ordinary way."""
    families: dict[str, str] = {}
    for reply in replies:
        lines = Lines(OWN)
        gpu.add_gpus(lines, reply, with_age=False)
        for name, text in lines.fragment().lines.items():
            families[name] = families.get(name, "") + text
    for info in infos:
        lines = Lines(OWN)
        guest.add_system(lines, info)
        for name, text in lines.fragment().lines.items():
            families[name] = families.get(name, "") + text
    return families


def blocks(sheet: Sheet, sources: Sequence[Filled]) -> dict[str, str]:
    for _ in sheet.fill(sources):
        pass
    return {name: b"".join(parts).decode() for name, parts in sheet.blocks.items()}


def write_gpus(lines: Lines, reply: GpuInfoResponse) -> None:
    gpu.add_gpus(lines, reply, with_age=False)


# Answers of two guests, one after the other; the form of the one before is always there to be used wrongly.
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(gpu_replies(), gpu_replies()), min_size=1, max_size=4),
    st.lists(st.tuples(system_infos(), system_infos()), min_size=1, max_size=4),
    # A step may end anywhere.
    st.sampled_from([1, 2, 3, 7, forms.LINES_AT_ONCE]),
)
def test_a_page_from_forms_is_the_page_that_is_made_line_by_line(
    gpus: list[tuple[GpuInfoResponse, GpuInfoResponse]], systems: list[tuple[SystemInfo, SystemInfo]], lines_at_once: int
) -> None:
    with patch.object(forms, "LINES_AT_ONCE", lines_at_once):
        _the_same_as_line_by_line(gpus, systems)


def _the_same_as_line_by_line(
    gpus: list[tuple[GpuInfoResponse, GpuInfoResponse]], systems: list[tuple[SystemInfo, SystemInfo]]
) -> None:
    empty = Lines(OWN)
    gpu_forms = [KeptForm(write_gpus, gpu.read_gpus) for _ in range(2)]
    system_forms = [KeptForm(guest.add_system, guest.read_system) for _ in range(2)]
    gpu_sheet, system_sheet = Sheet(), Sheet()
    for replies in gpus:
        filled = [form.of(reply, empty) for form, reply in zip(gpu_forms, replies, strict=True)]
        assert blocks(gpu_sheet, filled) == one_by_one(replies, ())
    for infos in systems:
        filled = [form.of(info, empty) for form, info in zip(system_forms, infos, strict=True)]
        assert blocks(system_sheet, filled) == one_by_one((), infos)


def test_only_numbers_are_formatted_anew_while_names_stay() -> None:
    written = 0

    def write(lines: Lines, reply: GpuInfoResponse) -> None:
        nonlocal written
        written += 1
        write_gpus(lines, reply)

    form, sheet = KeptForm(write, gpu.read_gpus), Sheet()
    for degrees in (31, 32, 0, 33):
        reply = GpuInfoResponse()
        reply.gpus.add(uuid="GPU-1", temperature_c=degrees)
        shown = blocks(sheet, [form.of(reply, Lines())])
        assert shown[table.CARD_FAMILIES["temperature_c"].name].endswith(f'uuid="GPU-1",pci_bus_id=""}} {degrees}\n')
    assert written == 1


def test_a_guest_that_shows_one_card_twice_gets_the_first_one_s_lines_each_time() -> None:
    form, sheet = KeptForm(write_gpus, gpu.read_gpus), Sheet()
    for degrees in (31, 32):
        reply = GpuInfoResponse()
        reply.gpus.add(uuid="GPU-1", temperature_c=degrees)
        reply.gpus.add(uuid="GPU-1", temperature_c=99)
        shown = blocks(sheet, [form.of(reply, Lines())])
        assert shown[table.CARD_FAMILIES["temperature_c"].name].count("\n") == 1
        assert shown[table.CARD_FAMILIES["temperature_c"].name].endswith(f" {degrees}\n")


SAME_NAME = {
    "the same uuid, another index": GpuDevice(index=1, uuid="GPU-1", pci_bus_id="00000000:02:00.0"),
    "the same address, another uuid": GpuDevice(index=1, uuid="GPU-2", pci_bus_id="00000000:01:00.0"),
    "all the same": GpuDevice(uuid="GPU-1", pci_bus_id="00000000:01:00.0"),
}


@pytest.mark.parametrize("how", SAME_NAME)
def test_a_card_with_another_s_uuid_or_address_has_no_series_and_is_counted(how: str) -> None:
    form, sheet = KeptForm(write_gpus, gpu.read_gpus), Sheet()
    for degrees in (31, 32):
        reply = GpuInfoResponse()
        reply.gpus.add(uuid="GPU-1", pci_bus_id="00000000:01:00.0", temperature_c=degrees)
        again = reply.gpus.add()
        again.CopyFrom(SAME_NAME[how])
        again.temperature_c = 99
        again.xids.add(xid=79, count=1)
        page = "".join(blocks(sheet, [form.of(reply, Lines())]).values())
        assert (
            f'{table.CARD_FAMILIES["temperature_c"].name}{{index="0",uuid="GPU-1",pci_bus_id="00000000:01:00.0"}} {degrees}\n'
            in page
        )
        assert page.count('uuid="GPU-1"') == page.count('index="0",uuid="GPU-1"')
        assert 'xid="79"' not in page
        assert 'uuid="GPU-2"' not in page
        assert "\ndstack_gpu_nvml_devices 1\n" in page
        assert "\ndstack_gpu_repeated_devices 1\n" in page


def test_cards_whose_names_are_unknown_are_not_taken_for_one() -> None:
    reply = GpuInfoResponse()
    for index in range(3):
        reply.gpus.add(index=index, temperature_c=40 + index)
    page = "".join(blocks(Sheet(), [KeptForm(write_gpus, gpu.read_gpus).of(reply, Lines())]).values())
    assert page.count(table.CARD_FAMILIES["temperature_c"].name + "{") == 3
    assert "repeated" not in page


def test_what_no_source_changed_is_not_made_again() -> None:
    sheet, lines = Sheet(), Lines(OWN)
    reply = GpuInfoResponse()
    reply.gpus.add(uuid="GPU-1", temperature_c=1)
    source = KeptForm(write_gpus, gpu.read_gpus).of(reply, lines)
    blocks(sheet, [source])
    before = sheet.blocks
    blocks(sheet, [source])
    assert sheet.blocks is before
