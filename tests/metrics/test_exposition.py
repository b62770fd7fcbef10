"""Pages as text: what the official parser reads back is what was put in."""

from __future__ import annotations

import math
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import Container
from guest_metrics import table
from guest_metrics.exposition import Format, Lines, NumberText, chunks, hundredths, negotiate, number_text, page, thousandths
from guest_metrics.guest import add_containers
from tests.metrics.readers import at, read

# Any text; a lone surrogate is none.
any_text = st.text(st.characters(exclude_categories=["Cs"]))
UNSEEN = {"Cc", "Cf", "Zl", "Zp"}
# Of Cf since Unicode 15, which the product's table follows; Python 3.11 has Unicode 14.
UNSEEN_LATER = {chr(code) for code in range(0x13439, 0x13440)}


def seen(text: str) -> str:
    """`text` as a page may show it: characters that drive a terminal are escaped; a line break is by the formats themselves."""

    def is_seen(c: str) -> bool:
        return c == "\n" or (unicodedata.category(c) not in UNSEEN and c not in UNSEEN_LATER)

    return "".join(c if is_seen(c) else c.encode("unicode_escape").decode() for c in text)


formats = st.sampled_from(Format)


@given(os_name=any_text, kernel=any_text, form=formats)
@example(os_name='A"B\\C\nD', kernel='"', form=Format.TEXT)
@example(os_name="ends in a backslash\\", kernel="\\n", form=Format.OPENMETRICS)
@example(os_name="\0", kernel="a\0b", form=Format.OPENMETRICS)
@example(os_name='} 1\ndstack_gpu_nvml_up 0\n# {"', kernel="\r\x85\u2028\ufeff", form=Format.TEXT)
def test_any_text_in_any_label_comes_back_from_the_official_parser(os_name: str, kernel: str, form: Format) -> None:
    lines = Lines()
    lines.add(table.GUEST_INFO, 1, os_name, "12", kernel, os_name)
    lines.add(table.GUEST_CPUS, 7)
    samples = read(page([lines.fragment()], form), form)
    wanted = at("dstack_guest_info", os_name=seen(os_name), os_version="12", kernel_version=seen(kernel), cpu_model=seen(os_name))
    assert samples == {wanted: 1, at("dstack_guest_cpus"): 7}


@pytest.mark.parametrize("form", Format)
def test_nothing_that_drives_a_terminal_is_raw_on_a_page(form: Format) -> None:
    unseen = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in UNSEEN]
    lines = Lines({"vm_id": "".join(unseen)})
    lines.add(table.GUEST_INFO, 1, "".join(unseen), *unseen[27:30])
    shown = page([lines.fragment()], form).decode()
    assert set(shown) & set(unseen) == {"\n"}
    assert '{vm_id="\\\\x00\\\\x01' in shown
    assert len(shown.splitlines()) == (3 if form is Format.TEXT else 4)
    assert len(read(shown.encode(), form)) == 1


def test_two_containers_whose_names_are_shown_alike_are_one_series() -> None:
    lines = Lines()
    add_containers(lines, [Container(id="a", names=[name]) for name in ("\x1b", "\\x1b", "other")])
    assert len(read(page([lines.fragment()], Format.TEXT), Format.TEXT)) == 2


@given(own=any_text, uuid=any_text, form=formats)
@example(own="", uuid="\U00013439", form=Format.TEXT)
def test_any_text_in_a_label_of_the_proxy_comes_back_too(own: str, uuid: str, form: Format) -> None:
    lines = Lines({"vm_id": own})
    lines.add(table.CARD_FAMILIES["power_usage_mw"], 5, "0", uuid, "")
    lines.add(table.GPU_NVML_UP, 1)
    assert read(page([lines.fragment()], form), form) == {
        at("dstack_gpu_power_usage_milliwatts", vm_id=seen(own), index="0", uuid=seen(uuid), pci_bus_id=""): 5,
        at("dstack_gpu_nvml_up", vm_id=seen(own)): 1,
    }


@given(number=st.floats() | st.integers(0, 2**64 - 1))
def test_any_number_comes_back(number: float) -> None:
    lines = Lines()
    lines.add(table.GUEST_UPTIME, number)
    [value] = read(page([lines.fragment()], Format.TEXT), Format.TEXT).values()
    assert value == float(number) or (math.isnan(value) and math.isnan(number))


@pytest.mark.parametrize("text", ["\ud800", "x\udcffy"])
def test_bytes_that_are_no_text_stand_as_replacement_characters(text: str) -> None:
    lines = Lines()
    lines.add(table.GUEST_DISK_TOTAL, 1, text, "/")
    [(_, labels)] = read(page([lines.fragment()], Format.TEXT), Format.TEXT)
    assert dict(labels)["name"] == "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_the_largest_integer_stands_with_every_digit() -> None:
    lines = Lines()
    lines.add(table.GUEST_MEMORY_TOTAL, 2**64 - 1)
    assert b"\ndstack_guest_memory_total_bytes 18446744073709551615\n" in page([lines.fragment()], Format.TEXT)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (True, "1"), (0.1, "0.1"), (1e300, "1e+300"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"),
        (NumberText("1.50"), "1.50"), (thousandths(60000), "60.000"), (thousandths(2**64 - 1), "18446744073709551.615"),
        (thousandths(7), "0.007"), (hundredths(1234), "12.34"), (hundredths(4), "0.04"),
    ],
)  # fmt: skip
def test_a_number_is_written_as_the_formats_want_it(number: float, text: str) -> None:
    assert number_text(number) == text


@pytest.mark.parametrize("form", Format)
def test_a_page_of_many_guests_keeps_each_family_together_and_every_sample(form: Format) -> None:
    fragments = []
    for guest in range(5):
        lines = Lines({"vm_id": f"vm-{guest}"})
        lines.add(table.GPU_NVML_UP, guest % 2)
        lines.add(table.GUEST_CPUS, guest)
        fragments.append(lines.fragment())
    body = page(fragments, form)
    samples = read(body, form)
    assert samples == {at("dstack_gpu_nvml_up", vm_id=f"vm-{guest}"): guest % 2 for guest in range(5)} | {
        at("dstack_guest_cpus", vm_id=f"vm-{guest}"): guest for guest in range(5)
    }
    assert body == b"".join(chunks(fragments, form))
    assert sum(len(text) for fragment in fragments for text in fragment.lines.values()) < len(body)


def test_openmetrics_says_unit_and_end_and_names_counters_and_infos_without_their_suffix() -> None:
    lines = Lines()
    lines.add(table.GPU_SAMPLES, 3, "sample")
    lines.add(table.GUEST_INFO, 1, "a", "b", "c", "d")
    lines.add(table.CARD_FAMILIES["temperature_c"], 31, "0", "GPU-0", "00000000:01:00.0")
    body = page([lines.fragment()], Format.OPENMETRICS)
    assert b"# TYPE dstack_gpu_samples counter\n" in body
    assert b"# TYPE dstack_guest info\n" in body
    assert b"# UNIT dstack_gpu_temperature_celsius celsius\n" in body
    assert body.endswith(b"\n# EOF\n")
    text = page([lines.fragment()], Format.TEXT)
    assert b"# TYPE dstack_gpu_samples_total counter\n" in text
    assert b"# TYPE dstack_guest_info gauge\n" in text
    assert b"EOF" not in text
    assert b"UNIT" not in text


@pytest.mark.parametrize("form", Format)
def test_a_histogram_adds_its_buckets_up(form: Format) -> None:
    lines = Lines()
    lines.add_histogram(table.PROXY_CALL_DURATION, (0.1, 1), (3, 0, 2), 7.5, ("GpuInfo",))
    name = "vmm_proxy_call_duration_seconds"
    assert read(page([lines.fragment()], form), form) == {
        at(f"{name}_bucket", method="GpuInfo", le="0.1"): 3,
        at(f"{name}_bucket", method="GpuInfo", le="1.0"): 3,
        at(f"{name}_bucket", method="GpuInfo", le="+Inf"): 5,
        at(f"{name}_sum", method="GpuInfo"): 7.5,
        at(f"{name}_count", method="GpuInfo"): 5,
    }


def test_a_wrong_number_of_label_values_or_buckets_is_our_bug_and_says_so() -> None:
    with pytest.raises(ValueError, match="2 values for the labels name, mount_point, not 1"):
        Lines().add(table.GUEST_DISK_FREE, 1, "only one")
    with pytest.raises(ValueError, match="need 2 counts"):
        Lines().add_histogram(table.PROXY_CALL_DURATION, (1,), (1,), 1, ("x",))


OPENMETRICS = "application/openmetrics-text"
PROMETHEUS_2 = f"{OPENMETRICS};version=1.0.0,{OPENMETRICS};version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, Format.TEXT),
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Format.TEXT),
        (PROMETHEUS_2, Format.OPENMETRICS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"; charset=utf-8', Format.OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.5", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;version=9.0.0", Format.TEXT),
        ("application/openmetrics-text;q=0.2, */*;q=0.8", Format.TEXT),
        ("application/openmetrics-text;q=0.8, text/plain;version=1.0.0;q=1, */*;q=0.1", Format.OPENMETRICS),
        ("application/openmetrics-text;q=nan", Format.TEXT),
        ("application/openmetrics-text;q=high,;,=;q=,", Format.TEXT),
    ],
)
def test_the_format_is_text_unless_openmetrics_is_asked_for_and_wanted_at_least_as_much(accept: str | None, form: Format) -> None:
    assert negotiate(accept) is form


@given(accept=st.text())
def test_no_accept_header_breaks_the_negotiation(accept: str) -> None:
    assert negotiate(accept) in Format
