"""`[http]` and `[metrics]`: where pages are served, and what stands on their lines.

Refused is what would show every guest's figures to a network by accident, and labels that would mean two things.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from guest_transport.addresses import Address, AddressError, TcpAddress, UnixAddress, parse_address
from guest_transport.errors import SettingsError
from guest_transport.settings.read import HostName
from vmm_proxy.metrics.labels import chosen_labels

# Loopback, so that nobody beyond this host sees the guests unless the operator says so.
DEFAULT_LISTEN = "127.0.0.1:9880"
# More labels would make each of 96,000 lines longer than what it says.
LABELS_LIMIT = 16
# What a Host header, a scrape target and an operator may say of a host and port.
HOST_PORT = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


class Http(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[http]`: the pages of the proxy."""

    # Where /, /metrics and /sd are served: HOST:PORT, [v6]:PORT, unix:/path (mode 0660), or "off". Whoever reaches it sees every guest's
    # figures.
    listen: str = DEFAULT_LISTEN
    # Allows pages beyond loopback: plain HTTP, to everybody who reaches the port.
    allow_plaintext: bool = False
    # Pages to those only who show a token of access.token_file; off, because a scraper on this host needs none so far.
    need_token: bool = False
    # Answers /guest/<Method> as dstack's VMM does, for its callers and for curl, to whom gRPC would answer as well (docs/dstack.md).
    guest_api: bool = False
    # Names besides this machine's own under which the pages are asked for; a request for another name is 421, so that a page of somebody
    # else's, whose name was made to resolve to this port, reads nothing. Addresses, localhost and the name in metrics.target need not be
    # named.
    host_names: tuple[HostName, ...] = ()


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[metrics]`: what stands on /metrics and /sd."""

    # Labels of the directory that stand on each of a guest's lines, as vm_…; none by default, each makes every line longer.
    labels: tuple[str, ...] = ()
    # Whether guests are asked for their containers, whose names are their tenants'.
    containers: bool = True
    # Where Prometheus finds this proxy, HOST:PORT; by default as it asked for /sd.
    target: str | None = None


class PageSetup(msgspec.Struct, frozen=True):
    """Both, checked; `listen` None: no pages. `labels` are label names by directory key."""

    listen: Address | None
    labels: Mapping[str, str]
    containers: bool
    target: str | None
    need_token: bool = False
    guest_api: bool = False
    host_names: Sequence[str] = ()


def page_setup(http: Http, metrics: Metrics, *, flag: str | None, has_tokens: bool, where: str) -> PageSetup:
    """The setup of both and of `--http`; `has_tokens`: access.token_file is set. Raises SettingsError with one line."""
    in_flag = flag is not None
    listen = _listen(flag or http.listen, "--http" if in_flag else f"{where}: http.listen", plain=http.allow_plaintext)
    if metrics.target is not None and not HOST_PORT.fullmatch(metrics.target):
        raise SettingsError(f"{where}: metrics.target: must be HOST:PORT, not {metrics.target[:120]!a}")
    if len(metrics.labels) > LABELS_LIMIT:
        raise SettingsError(f"{where}: metrics.labels: at most {LABELS_LIMIT} labels are allowed")
    try:
        labels = chosen_labels(metrics.labels)
    except ValueError as error:
        raise SettingsError(f"{where}: metrics.labels: {error}; leave one of them out") from error
    if http.need_token and not has_tokens:
        raise SettingsError(f"{where}: http.need_token: nobody could be let in; set access.token_file")
    if http.guest_api and isinstance(listen, TcpAddress) and not listen.loopback and not has_tokens:
        raise SettingsError(
            f"{where}: http.guest_api: nobody could be let in; set access.token_file, or use loopback or unix:/path"
        )
    # Prometheus asks for the pages under the name that /sd gave it.
    target = [metrics.target.rpartition(":")[0] or metrics.target] if metrics.target is not None else []
    return PageSetup(
        listen, labels, metrics.containers, metrics.target, http.need_token, http.guest_api, (*http.host_names, *target)
    )


def _listen(text: str, where: str, *, plain: bool) -> Address | None:
    if text == "off":
        return None
    try:
        address = parse_address(text)
    except AddressError as error:
        raise SettingsError(f"{where}: {error}; or off for no pages") from error
    match address:
        case UnixAddress():
            return address
        case TcpAddress() if address.loopback or plain:
            return address
        case TcpAddress():
            raise SettingsError(f"{where}: {address}: pages beyond loopback need http.allow_plaintext = true; or use unix:/path")
    raise SettingsError(f"{where}: {address}: pages are served on HOST:PORT or unix:/path only")
