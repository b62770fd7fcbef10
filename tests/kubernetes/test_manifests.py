"""deploy/kubernetes without a cluster: by the API's own schemas, by kubectl, and what the pods may and may not."""

from __future__ import annotations

import json
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from guest_transport.addresses import UnixAddress
from tests.packaging.source_tree import ROOT
from vmm_proxy.config import DEFAULT_LISTEN, read_setup
from vmm_proxy.directory.kubevirt.settings import FROM_ENVIRONMENT

FOLDER = ROOT / "deploy/kubernetes"
BASE = FOLDER / "base"
KUBECTL = shutil.which("kubectl")
needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="missing: kubectl (Debian: kubernetes-client)")
# The oldest whose schemas there are, and the newest.
RELEASES = ("1.25", kubernetes_validate.latest_version())
# Kinds of the cluster itself; the others come with an operator.
OWN_GROUPS = {"v1", "apps/v1", "rbac.authorization.k8s.io/v1", "networking.k8s.io/v1"}

Manifest = dict[str, Any]


def kustomization() -> Manifest:
    read: Manifest = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))
    return read


def manifests() -> list[Manifest]:
    files = [BASE / name for name in kustomization()["resources"]]
    return [document for file in files for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def only(kind: str) -> Manifest:
    (found,) = [manifest for manifest in manifests() if manifest["kind"] == kind]
    return found


def pod() -> Manifest:
    spec: Manifest = only("DaemonSet")["spec"]["template"]["spec"]
    return spec


def container() -> Manifest:
    (found,) = pod()["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_the_schemas_of_the_api_take_each_manifest_and_no_key_is_misspelt(manifest: Manifest, release: str) -> None:
    if manifest["apiVersion"] not in OWN_GROUPS:
        assert manifest["apiVersion"] == "monitoring.coreos.com/v1"
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kubernetes_validate.validate(manifest, release, strict=True)


def test_the_judge_sees_a_misspelt_key() -> None:
    spoilt = json.loads(json.dumps(only("DaemonSet")))
    spoilt["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFileSystem"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(spoilt, RELEASES[-1], strict=True)


@needs_kubectl
def test_kubectl_renders_the_base_with_the_configuration_and_reads_all_of_it() -> None:
    assert KUBECTL
    rendered = subprocess.run([KUBECTL, "kustomize", str(BASE)], check=False, capture_output=True, text=True)
    assert (rendered.returncode, rendered.stderr) == (0, "")
    documents = list(yaml.safe_load_all(rendered.stdout))
    assert {document["kind"] for document in documents} == {manifest["kind"] for manifest in manifests()} | {"ConfigMap"}
    (config,) = [document for document in documents if document["kind"] == "ConfigMap"]
    assert config["data"]["config.toml"] == (BASE / "config.toml").read_text(encoding="utf-8")
    (daemons,) = [document for document in documents if document["kind"] == "DaemonSet"]
    names = [volume["configMap"]["name"] for volume in daemons["spec"]["template"]["spec"]["volumes"] if "configMap" in volume]
    assert names == [config["metadata"]["name"]]
    # --local: kubectl's own types read it, and no server is asked.
    read = subprocess.run(
        [KUBECTL, "annotate", "--local", "-f", "-", "read=yes", "-o", "name"],
        input=rendered.stdout,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (read.returncode, read.stderr) == (0, "")
    assert len(read.stdout.split()) == len(documents)


def test_every_file_of_the_base_is_part_of_it() -> None:
    used = kustomization()
    listed = {*used["resources"], *(file for each in used["configMapGenerator"] for file in each["files"])}
    assert {file.name for file in BASE.iterdir()} == {*listed, "kustomization.yaml"}
    assert {manifest["metadata"].get("namespace", used["namespace"]) for manifest in manifests()} == {used["namespace"]}


def test_the_proxy_may_list_and_watch_one_kind_and_nothing_else() -> None:
    role = only("ClusterRole")
    assert role["rules"] == [{"apiGroups": ["kubevirt.io"], "resources": ["virtualmachineinstances"], "verbs": ["list", "watch"]}]
    binding = only("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = only("ServiceAccount")["metadata"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}]
    assert pod()["serviceAccountName"] == account["name"]


def test_the_pods_keep_to_the_restricted_standard_and_touch_nothing_of_the_node() -> None:
    spec, context = pod(), container()["securityContext"]
    assert only("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "hostUsers"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532, "the image's own"
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} == {"configMap", "emptyDir"}
    mounted = {mount["name"] for mount in container()["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_the_profile_that_the_pods_ask_for_is_the_one_that_is_shipped_and_the_page_installs() -> None:
    profile = pod()["securityContext"]["seccompProfile"]
    assert profile["type"] == "Localhost"
    assert (FOLDER / "seccomp" / profile["localhostProfile"]).is_file()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert f"/var/lib/kubelet/seccomp/{profile['localhostProfile']}" in readme


def test_the_proxy_takes_the_configuration_and_every_path_and_port_in_it_is_mounted_or_open() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODE_NAME", "")
        setup = read_setup(BASE / "config.toml", environment={"NODE_NAME": "gpu-node-1"})
    assert setup.kubevirt is not None
    text = (BASE / "config.toml").read_text(encoding="utf-8")
    (variable,) = [each for each in container()["env"] if f'"{FROM_ENVIRONMENT}{each["name"]}"' in text]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    mounts = {mount["name"]: mount["mountPath"] for mount in container()["volumeMounts"]}
    (socket,) = setup.listen
    assert isinstance(socket, UnixAddress)
    assert str(socket) == DEFAULT_LISTEN, "guestctl in the pod looks there"
    assert str(Path(socket.path).parent) == mounts["run"]
    dockerfile = (ROOT / "deploy/container/Dockerfile").read_text(encoding="utf-8")
    assert f'"{mounts["config"]}/config.toml"' in dockerfile.splitlines()[-1]
    (port,) = container()["ports"]
    assert str(setup.pages.listen).endswith(f":{port['containerPort']}")
    assert mounts["tmp"] == "/tmp"


def test_service_monitor_and_policy_mean_the_pods_and_their_port() -> None:
    labels = only("DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    (port,) = container()["ports"]
    service, monitor, policy = only("Service")["spec"], only("PodMonitor")["spec"], only("NetworkPolicy")["spec"]
    for selector in (
        service["selector"],
        monitor["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        only("DaemonSet")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    targets = {each["targetLabel"]: each for each in endpoint["relabelings"]}
    assert targets["host"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]
    (ingress,) = policy["ingress"]
    assert [each["port"] for each in ingress["ports"]] == [port["name"]]
    hosts = read_setup(BASE / "config.toml", environment={"NODE_NAME": "n"}).pages.host_names
    name = only("Service")["metadata"]
    assert f"{name['name']}.{name['namespace']}.svc" in hosts


def test_the_image_has_the_client_that_the_configuration_needs() -> None:
    dockerfile = (ROOT / "deploy/container/Dockerfile").read_text(encoding="utf-8")
    assert "-r requirements/image.lock.txt" in dockerfile
    assert "\nlightkube==" in (ROOT / "requirements/image.lock.txt").read_text(encoding="utf-8")
