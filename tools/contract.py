"""Keeps the contract: turns proto/ into generated/, proto/contract.lock and an image for buf, and says where they differ.

The readable lock stands beside buf's breaking check because a reviewer must see in a diff which names, numbers and types of the
wire format were released; an image alone would hide them. Rejected: calling protoc from the Makefile, which would spread the
list of proto files over two places. It never edits proto/.

    python tools/contract.py generate     # `make proto`
    python tools/contract.py check        # generated/ is fresh, the lock only grew, buf agrees
    python tools/contract.py release      # makes the present contract the one that may never break
"""

from __future__ import annotations

import filecmp
import importlib.resources
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
GENERATED = ROOT / "generated"
LOCK = PROTO / "contract.lock"
RELEASED = PROTO / "contract.released.binpb"
BUF_CONFIG = PROTO / "buf.yaml"

_Field = descriptor_pb2.FieldDescriptorProto


def proto_files() -> list[str]:
    """Names of the proto files relative to proto/, sorted."""
    return sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))


def run_protoc(*options: str) -> None:
    """Run protoc on all files; raises SystemExit with protoc's own words when it refuses."""
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    site_packages = next(p for p in map(Path, sys.path) if (p / "google" / "rpc" / "status.proto").is_file())
    arguments = ["protoc", f"-I{PROTO}", f"-I{well_known}", f"-I{site_packages}", *options, *proto_files()]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc refused the contract, see above")


def generate(target: Path) -> None:
    """Write the Python code and stubs of the contract to `target`, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    scripts = Path(sys.executable).parent
    run_protoc(
        f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
    )
    for package in sorted({path.parent for path in target.rglob("*.py")}):
        for folder in [package, *package.parents]:
            if folder == target:
                break
            (folder / "__init__.py").touch()
            (folder / "py.typed").touch()


def image() -> bytes:
    """The contract as a descriptor set with imports and comments, as buf reads it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "contract.binpb"
        run_protoc("--include_imports", "--include_source_info", f"--descriptor_set_out={out}")
        return out.read_bytes()


def lock_lines(descriptor_set: bytes) -> list[str]:
    """One line per rpc, field and enum value of our own files, sorted."""
    ours = set(proto_files())
    lines: list[str] = []
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
        if file.name in ours:
            for message in file.message_type:
                lines += _message_lines(f"{file.package}.{message.name}", message)
            for enum in file.enum_type:
                lines += [f"enum {file.package}.{enum.name} {value.number} {value.name}" for value in enum.value]
            for service in file.service:
                lines += [_method_line(f"{file.package}.{service.name}", method) for method in service.method]
    return sorted(lines)


def _message_lines(name: str, message: descriptor_pb2.DescriptorProto) -> list[str]:
    lines = []
    for field in message.field:
        label = "repeated" if field.label == _Field.LABEL_REPEATED else "optional" if field.proto3_optional else "single"
        oneof = field.HasField("oneof_index") and not field.proto3_optional
        if oneof:
            label = f"oneof:{message.oneof_decl[field.oneof_index].name}"
        kind = field.type_name.lstrip(".") or _Field.Type.Name(field.type).removeprefix("TYPE_").lower()
        lines.append(f"field {name} {field.number:04d} {label} {kind} {field.name}")
    for nested in message.nested_type:
        lines += _message_lines(f"{name}.{nested.name}", nested)
    return lines


def _method_line(service: str, method: descriptor_pb2.MethodDescriptorProto) -> str:
    request = ("stream " if method.client_streaming else "") + method.input_type.lstrip(".")
    reply = ("stream " if method.server_streaming else "") + method.output_type.lstrip(".")
    return f"rpc {service}.{method.name}({request}) returns ({reply})"


def differing(fresh: Path, kept: Path) -> list[str]:
    """Files that one of two trees lacks, or that differ; compiled files are no part of the comparison."""

    def names(root: Path) -> set[Path]:
        return {p.relative_to(root) for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts}

    both = names(fresh) & names(kept)
    changed = {name for name in both if not filecmp.cmp(fresh / name, kept / name, shallow=False)}
    return sorted(map(str, changed | (names(fresh) ^ names(kept))))


def lock_complaints(kept: list[str], fresh: list[str]) -> list[str]:
    """What the lock forbids: a released line that is gone, or a new one that is not locked yet."""
    gone = [f"released, and may not change or go: {line}" for line in kept if line not in set(fresh)]
    new = [f"not in {LOCK.name} yet, run `make proto`: {line}" for line in fresh if line not in set(kept)]
    return gone + new


def buf_complaints(descriptor_set: bytes) -> list[str]:
    """What buf lint and buf breaking say of the contract."""
    complaints = []
    buf = str(Path(sys.executable).parent / "buf")
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "now.binpb"
        now.write_bytes(descriptor_set)
        ours = [argument for name in proto_files() for argument in ("--path", name)]
        for command in (["lint", str(now)], ["breaking", str(now), "--against", str(RELEASED)]):
            done = subprocess.run(
                [buf, *command, "--config", str(BUF_CONFIG), *ours], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                complaints.append(f"buf {command[0]}: {(done.stdout + done.stderr).strip()}")
    return complaints


def check() -> list[str]:
    """All complaints about the contract; empty when it is kept."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "generated"
        generate(fresh)
        complaints = [f"generated/{name} is not fresh, run `make proto`" for name in differing(fresh, GENERATED)]
    descriptor_set = image()
    kept = LOCK.read_text(encoding="utf-8").splitlines()
    return complaints + lock_complaints(kept, lock_lines(descriptor_set)) + buf_complaints(descriptor_set)


def main(arguments: list[str]) -> int:
    """Run one command; exit status 1 with one complaint a line, 2 for a wrong command."""
    match arguments:
        case ["generate"]:
            generate(GENERATED)
            kept = LOCK.read_text(encoding="utf-8").splitlines() if LOCK.exists() else []
            fresh = lock_lines(image())
            LOCK.write_text("\n".join(sorted(set(kept) | set(fresh))) + "\n", encoding="utf-8")
        case ["release"]:
            RELEASED.write_bytes(image())
        case ["check"]:
            complaints = check()
            for complaint in complaints:
                sys.stderr.write(complaint + "\n")
            return 1 if complaints else 0
        case _:
            sys.stderr.write("usage: contract.py generate|check|release\n")
            return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
