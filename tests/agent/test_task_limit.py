"""An agent that may start no process: no sample, the reason, everything else, and samples again once it may."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from tests.agent.agent import running_agent
from tests.agent.test_serve import dialled
from tests.task_limit import limitable, no_more_tasks

EMPTY = empty_pb2.Empty()
NEW_SAMPLE = (("cache-control", "max-age=0"),)
CONFIG = """
[gpu]
sample_ttl_seconds = 0.01
failure_backoff_seconds = 0.01
"""


def test_at_the_limit_of_tasks_the_agent_lives_tells_why_there_is_no_sample_and_recovers(short_path: Path) -> None:
    (short_path / "config.toml").write_text(CONFIG)
    short_path.chmod(0o777)
    address = f"unix:{short_path}/g.sock"
    flags = ("--config", f"{short_path}/config.toml", "--simulate", "h200", "--grpc", address, "--http", "off")
    with running_agent(*flags, prefix=limitable()) as agent, dialled(address) as channel:
        stub = guest_api_pb2_grpc.GuestApiStub(channel)

        def sample() -> guest_api_pb2.GpuInfoResponse:
            reply: guest_api_pb2.GpuInfoResponse = stub.GpuInfo(EMPTY, metadata=NEW_SAMPLE, timeout=20)
            return reply

        assert len(sample().gpus) == 1
        with no_more_tasks(agent.process.pid):
            for _ in range(5):
                failed = sample()
                assert failed.error.startswith("the GPU collector cannot be started: ")
                assert "TasksMax=" in failed.error
            assert stub.Info(EMPTY, timeout=20).version
        assert len(sample().gpus) == 1
        assert agent.end() == 0
