"""deploy/examples/many-hosts, followed from first line to last: two of Debian's Prometheus over mutual TLS, a proxy and its guests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.agent import running_agent
from tests.eventually import eventually_here
from tests.examples.readme import EXAMPLES, commands, copied, moved, must, typed
from tests.examples.running import network, started

PAGE = EXAMPLES / "many-hosts/README.md"
pytestmark = [
    pytest.mark.skipif(shutil.which("promtool") is None, reason="missing: prometheus, promtool (Debian package prometheus)"),
    pytest.mark.timeout(240),
]
# Both levels, and a proxy that has just started, on a machine with other work.
BOUND_SECONDS = 120


def hurried(folder: Path) -> None:
    """The same files with short intervals: a minute of the example in seconds."""
    for file in folder.glob("*.yml"):
        text = re.sub(r"(scrape_interval|scrape_timeout|refresh_interval): \d+s", r"\1: 2s", file.read_text(encoding="utf-8"))
        file.write_text(text, encoding="utf-8")


def install(heading: str, office: Path, folder: Path, root: Path) -> None:
    """Follow a step on one machine: files named there are copied from the office, the rest is the example's."""
    copied("many-hosts", folder, root)
    hurried(folder)
    (root / "etc/default").mkdir(parents=True)
    for line in commands(PAGE, heading):
        if line.startswith("systemctl "):
            continue
        for name in re.findall(r"(?<![\w/])[\w-]+\.(?:crt|key|ca)\b", line):
            shutil.copy(office / name, folder)
        must(moved(line.replace(" --group=prometheus", ""), root), folder)


@contextmanager
def prometheus(root: Path, *arguments: str, prefix: tuple[str, ...]) -> Iterator[None]:
    """Debian's Prometheus with the configuration in `root`, ready."""
    process = subprocess.Popen(
        [
            *prefix,
            "prometheus",
            f"--config.file={root}/etc/prometheus/prometheus.yml",
            f"--storage.tsdb.path={root}/data",
            *arguments,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if "ready to receive web requests" in line:
                break
        else:
            raise AssertionError(f"Prometheus ended: {said}")
        yield
    finally:
        process.terminate()
        process.stderr.read()
        process.wait(20)
        process.stderr.close()


@dataclass(frozen=True)
class Fleet:
    """The fleet's Prometheus, asked from inside its network."""

    office: Path
    root: Path
    prefix: tuple[str, ...]

    # Any: JSON as Prometheus documents it.
    def query(self, expression: str) -> list[dict[str, Any]]:
        line = f"promtool query instant -o json http://127.0.0.1:9090 '{expression}'"
        return list(json.loads(must(line, self.office, prefix=self.prefix)))

    def shows(self, expression: str) -> list[dict[str, Any]]:
        """The answer of `expression` as soon as it has one."""
        return eventually_here(lambda: self.query(expression), BOUND_SECONDS)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    office = tmp_path / "office/many-hosts"
    office.mkdir(parents=True)
    shutil.copytree(EXAMPLES / "mutual-tls", tmp_path / "office/mutual-tls")
    for line in commands(PAGE, "1."):
        must(line, office)
    with ExitStack() as ending:
        prefix = ending.enter_context(network("10.0.0.1/32", "10.0.0.2/32"))
        short = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="gs-")))
        host, above = short / "host", short / "fleet"
        install("2.", office, tmp_path / "host", host)
        install("3.", office, tmp_path / "above", above)
        guests = ""
        for name, rack in (("vm1", "h200"), ("vm2", "none")):
            address = f"unix:{short}/{name}"
            ending.enter_context(running_agent("--grpc", address, "--http", "off", "--simulate", rack))
            guests += f"[[guest]]\nid = '{name}'\naddress = '{address}'\nlabels = {{ tenant = 'blue' }}\n"
        (short / "proxy.toml").write_text(guests)
        proxy = ("vmm_proxy", "serve", "--config", f"{short}/proxy.toml", "--grpc", f"unix:{short}/proxy")
        ending.enter_context(started(*proxy, ready="listening for HTTP on", prefix=prefix))
        arguments = re.search(r'ARGS="(.*)"', (host / "etc/default/prometheus").read_text(encoding="utf-8"))
        assert arguments
        ending.enter_context(prometheus(host, *arguments[1].split(), prefix=prefix))
        ending.enter_context(prometheus(above, "--web.listen-address=127.0.0.1:9090", prefix=prefix))
        yield Fleet(office, short, prefix)


def test_who_follows_the_page_sees_every_guest_of_every_host_in_one_place(fleet: Fleet) -> None:
    up = fleet.shows('up{job="guests",instance="vm1"} == 1')
    assert up[0]["metric"] == {
        "__name__": "up", "job": "guests", "instance": "vm1", "vm_id": "vm1", "tenant": "blue", "host": "host1",
    }  # fmt: skip
    fleet.shows('up{job="guests",instance="vm2"} == 1')
    fleet.shows('vmm_proxy_guest_up{vm_id="vm2",host="host1"} == 1')
    assert len(fleet.shows('dstack_gpu_temperature_celsius{vm_id="vm1",host="host1",tenant="blue"}')) == 1
    # The second host of the page is not there, and says so.
    assert [one["value"][1] for one in fleet.shows('up{job="hosts",instance="10.0.0.2:9090"}')] == ["0"]
    # The page's own questions.
    asked = re.findall(r"^\| .* \| `(.*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(asked) == 4
    for question in asked:
        assert fleet.shows(question), question
    assert not fleet.query('{__name__=~"exported_.+"}')

    # What leaves a host leaves it for those with a certificate of the authority only.
    url = "https://10.0.0.1:9090/federate"
    code = (
        "import ssl, sys, urllib.request; context = ssl.create_default_context(cafile='metrics.ca');"
        "sys.argv[2:] and context.load_cert_chain(*sys.argv[2:]);"
        "print(urllib.request.urlopen(sys.argv[1], timeout=20, context=context).status)"
    )
    ask = f'python -c "{code}" {url}'
    assert typed(f"{ask} fleet.crt fleet.key", fleet.office, prefix=fleet.prefix).stdout == "200\n"
    for nobody in ("", " host2.crt host2.key"):
        refused = typed(ask + nobody, fleet.office, prefix=fleet.prefix)
        assert refused.returncode != 0
        assert "certificate" in refused.stderr


# What the receiver does not take of a Prometheus's configuration, as its documentation says.
REFUSED_BY_THE_RECEIVER = {"alerting", "remote_read", "remote_write", "rule_files"}


def collector() -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / "many-hosts/otel-collector.yml").read_text(encoding="utf-8")))


def test_the_collectors_receiver_is_a_configuration_that_prometheus_takes(tmp_path: Path) -> None:
    receiver = collector()["receivers"]["prometheus"]["config"]
    assert not REFUSED_BY_THE_RECEIVER & set(receiver)
    text = yaml.safe_dump(receiver)
    assert not re.search(r"(?<!\$)\$(?!\$)", text), "a single dollar sign is an environment variable to the collector"
    (tmp_path / "receiver.yml").write_text(text.replace("$$", "$"), encoding="utf-8")
    must("promtool check config receiver.yml", tmp_path)
    (tmp_path / "receiver.yml").write_text(text.replace("relabel_configs", "relabel_config"), encoding="utf-8")
    assert typed("promtool check config receiver.yml", tmp_path).returncode != 0


def test_the_collectors_pipeline_joins_what_is_configured_and_nothing_else() -> None:
    told = collector()
    assert set(told) == {"receivers", "processors", "exporters", "service"}
    pipelines = told["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert {name for pipeline in pipelines for name in pipeline[kind]} == set(told[kind])
    # The limiter protects what comes behind it, and batches are the last thing before they are sent.
    assert [pipeline["processors"] for pipeline in pipelines] == [["memory_limiter", "resource", "batch"]]


def test_a_collector_scrapes_what_a_hosts_prometheus_scrapes() -> None:
    host = yaml.safe_load((EXAMPLES / "many-hosts/host-prometheus.yml").read_text(encoding="utf-8"))

    def jobs(configuration: dict[str, Any]) -> dict[str, Any]:
        intervals = {"scrape_interval", "scrape_timeout"}
        return {job["job_name"]: {key: job[key] for key in job.keys() - intervals} for job in configuration["scrape_configs"]}

    assert jobs(collector()["receivers"]["prometheus"]["config"]) == jobs(host)
