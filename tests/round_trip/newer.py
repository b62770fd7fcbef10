"""A later version of the contract, made from the present one: every message has more fields, of every kind of wire value.

It exists twice: as classes of a descriptor pool of its own (this process knows only the present contract), and as a folder which, put
first on PYTHONPATH, makes a whole process of ours a later one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import google.protobuf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
PROTO = "guest_api/guest_api.proto"
LATER_FIELDS = """
  optional uint64 later_number = 2000;
  bytes later_bytes = 2001;
  repeated LaterPart later_parts = 2002;
  optional string later_text = 536870911;
"""
LATER_PART = """
message LaterPart {
  string word = 1;
  uint64 number = 2;
  repeated LaterDetail details = 3;
}
message LaterDetail {
  optional bool yes = 1;
  bytes raw = 2;
}
"""


@dataclass(frozen=True)
class Newer:
    """The later contract: its pool, and the folder that makes a process a later one."""

    pool: descriptor_pool.DescriptorPool
    folder: Path

    def kind(self, name: str) -> type[Message]:
        """The class of one of its messages, such as `guest_api.GpuInfoResponse`."""
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(name))


def compile_newer(folder: Path) -> Newer:
    """The later contract, compiled into `folder`."""
    text = (ROOT / "proto" / PROTO).read_text(encoding="utf-8")
    text, messages = re.subn(r"^(message \w+ \{)$", rf"\1{LATER_FIELDS}", text, flags=re.MULTILINE)
    assert messages >= 12, "the proto file is not laid out as this expects"
    source, out = folder / "proto", folder / "python"
    (source / PROTO).parent.mkdir(parents=True)
    (source / PROTO).write_text(text + LATER_PART, encoding="utf-8")
    out.mkdir()
    image = folder / "image"
    includes = [f"-I{source}", f"-I{Path(protoc.__file__).parent / '_proto'}", f"-I{Path(google.protobuf.__file__).parents[2]}"]
    outputs = [f"--python_out={out}", f"--grpc_python_out={out}", f"--descriptor_set_out={image}", "--include_imports"]
    assert protoc.main(["protoc", *includes, *outputs, PROTO]) == 0
    (out / PROTO).with_name("__init__.py").touch()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(image.read_bytes()).file:
        pool.Add(file)
    return Newer(pool, out)
