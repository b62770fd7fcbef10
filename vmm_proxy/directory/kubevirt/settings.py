"""`[kubevirt]` of the configuration: the instances of which node become guests.

The node must be the proxy's own, because a CID means a VM of this machine; nothing here can check that. Its name is asked for, not guessed:
the host name of a pod is the pod's, and a node may be registered under another name than its own.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guest_contract.identifiers import LABEL_KEY_RULE, valid_label_key
from guest_transport.errors import SettingsError
from vmm_proxy.directory.labels import LABELS_LIMIT, label_name

MODULE = "lightkube"
# In place of a node's name: the environment variable that holds it. A node's name has no colon.
FROM_ENVIRONMENT = "env:"
# Labels that the proxy gives to every guest by itself.
OWN_LABELS = ("namespace", "name")
# Each is followed by itself, with a connection; more of them are better served by one that sees all.
NAMESPACES_LIMIT = 64

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# RFC 1123, as Kubernetes has it: a node's name is a subdomain, which is also a label's value here and so 63 characters at most.
_NODE = re.compile(rf"(?=.{{1,63}}\Z){_NAME}(\.{_NAME})*")
_NAMESPACE = re.compile(rf"(?=.{{1,63}}\Z){_NAME}")


class KubevirtSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[kubevirt]`."""

    # This node's name in the cluster, or `env:NAME` for what the environment variable NAME holds; the instances on it become guests. None
    # by default, and then nothing of Kubernetes is needed.
    node: str | None = None
    # Instances of these namespaces only; all of them when empty, which needs the right to list and watch in the whole cluster.
    namespaces: tuple[str, ...] = ()
    # Labels of an instance that its guest has too, beside `namespace` and `name`. Whoever may create an instance chooses them.
    labels: tuple[str, ...] = ()
    # The vsock port on which guest-service listens in every VM.
    port: int = 8000
    # A kubeconfig file, for a proxy outside a pod; without it the pod's service account.
    kubeconfig: str | None = None


@dataclass(frozen=True, slots=True)
class KubevirtSetup:
    """What is followed, checked."""

    node: str
    namespaces: tuple[str, ...]
    labels: tuple[str, ...]
    port: int
    kubeconfig: Path | None


def check_kubevirt(settings: KubevirtSettings, where: str, environment: Mapping[str, str]) -> KubevirtSetup | None:
    """The setup if a cluster is to be followed; raises SettingsError."""
    where = f"{where}: kubevirt"
    if not 1 <= settings.port < 0xFFFFFFFF:
        raise SettingsError(f"{where}.port: must be from 1 to {0xFFFFFFFE}")
    if len(settings.namespaces) > NAMESPACES_LIMIT:
        raise SettingsError(f"{where}.namespaces: at most {NAMESPACES_LIMIT}; leave it out to follow all of them")
    for namespace in settings.namespaces:
        if not _NAMESPACE.fullmatch(namespace):
            raise SettingsError(f"{where}.namespaces: {namespace[:80]!a} is no name of a namespace")
    _check_labels(settings.labels, f"{where}.labels")
    kubeconfig = None if settings.kubeconfig is None else Path(settings.kubeconfig)
    if kubeconfig is not None and not kubeconfig.is_absolute():
        raise SettingsError(f"{where}.kubeconfig: must be an absolute path, not {str(kubeconfig)[:120]!a}")
    if settings.node is None:
        return None
    return KubevirtSetup(
        _node(settings.node, f"{where}.node", environment),
        tuple(dict.fromkeys(settings.namespaces)),
        tuple(dict.fromkeys(settings.labels)),
        settings.port,
        kubeconfig,
    )


def require_module() -> None:
    """Raise SettingsError when the client of Kubernetes is missing."""
    if importlib.util.find_spec(MODULE) is None:
        raise SettingsError(f"kubevirt.node is set, but Python's {MODULE} module is missing: install guestscope[kubevirt]")


def _node(text: str, where: str, environment: Mapping[str, str]) -> str:
    if text.startswith(FROM_ENVIRONMENT):
        variable = text.removeprefix(FROM_ENVIRONMENT)
        text = environment.get(variable, "")
        if not text:
            raise SettingsError(
                f"{where}: the environment variable {variable[:80]!a} is not set; a pod gets it by fieldRef: spec.nodeName"
            )
    if not _NODE.fullmatch(text):
        raise SettingsError(f"{where}: {text[:120]!a} is no name of a node, or longer than the 63 characters that a label holds")
    return text


def _check_labels(labels: tuple[str, ...], where: str) -> None:
    names = {label_name(own): own for own in OWN_LABELS}
    for key in dict.fromkeys(labels):
        if not valid_label_key(key):
            raise SettingsError(f"{where}: a key must be {LABEL_KEY_RULE}, not {key[:80]!a}")
        if label_name(key) in names:
            raise SettingsError(f"{where}: {key!a} would be one Prometheus label with {names[label_name(key)]!a}: leave one out")
        names[label_name(key)] = key
    if len(names) > LABELS_LIMIT:
        raise SettingsError(f"{where}: at most {LABELS_LIMIT - len(OWN_LABELS)} labels are allowed")
