"""What [http] and [metrics] of the proxy refuse, in one line that names the place and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.errors import SettingsError
from vmm_proxy.config import read_setup


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[http]\nlisten = '127.0.0.1'\n", "http.listen: '127.0.0.1'"),
        ("[http]\nlisten = '0.0.0.0:9880'\n", "http.listen: 0.0.0.0:9880: pages beyond loopback need http.allow_plaintext"),
        ("[http]\nlisten = 'vsock:any:9880'\n", "http.listen: vsock:any:9880: pages are served on HOST:PORT or unix:/path only"),
        ("[metrics]\nlabels = ['id']\n", "metrics.labels: 'id' would become vm_id, which is the guest's id already"),
        ("[metrics]\nlabels = ['a.b', 'a/b']\n", "metrics.labels: 'a/b' would become vm_a_b, which is 'a.b' already"),
        ("[metrics]\nlabels = ['rack', 'rack']\n", "metrics.labels: 'rack' would become vm_rack"),
        (f"[metrics]\nlabels = {[str(n) for n in range(17)]}\n", "metrics.labels: at most 16"),
        ("[metrics]\ntarget = 'http://proxy/'\n", "metrics.target: must be HOST:PORT"),
        ("[http]\nneed_token = true\n", "http.need_token: nobody could be let in; set access.token_file"),
        (
            "[http]\nguest_api = true\nlisten = '0.0.0.0:9880'\nallow_plaintext = true\n",
            "http.guest_api: nobody could be let in; set access.token_file",
        ),
        ("[metrics]\nlabel = []\n", "metrics.label: unknown key"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_its_place(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_setup(file)
    assert place in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_file_pages_are_on_loopback_only_and_no_label_is_added() -> None:
    pages = read_setup(None).pages
    assert pages.listen == TcpAddress("127.0.0.1", 9880)
    assert pages.labels == {}
    assert pages.containers
    assert not pages.guest_api


def test_the_flag_wins_over_the_file_and_off_is_no_pages(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text("[http]\nlisten = 'unix:/run/x'\n")
    assert read_setup(file).pages.listen == UnixAddress("/run/x")
    assert read_setup(file, http_flag="off").pages.listen is None


def test_pages_beyond_loopback_are_asked_for_by_name(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text("[http]\nlisten = '0.0.0.0:9880'\nallow_plaintext = true\n[metrics]\ntarget = '[fd00::1]:9880'\n")
    assert read_setup(file).pages.listen == TcpAddress("0.0.0.0", 9880)


def test_a_key_of_the_directory_becomes_a_label_that_prometheus_takes(tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text("[metrics]\nlabels = ['rack', 'k8s.io/node-name']\n")
    assert read_setup(file).pages.labels == {"rack": "vm_rack", "k8s.io/node-name": "vm_k8s_io_node_name"}
