"""Every text with which the product says that something is wrong, read from its source: `make messages` writes them to tests/messages/.

A message is written where a fault is decided, so nobody ever sees all of them together, and nobody compares them. Here they stand together:
what an exception is made with, what is logged as a warning or worse, and what a doctor finds wrong and advises. What is put in at run time
stands in braces, by its name in the code. Text that comes from elsewhere (another error's words) is no message of its own, and is left out.
Rejected: a catalogue of messages that the code takes them from (every reader of the code would have to look twice).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("guest_client", "guest_contract", "guest_metrics", "guest_pages", "guest_service", "guest_transport", "vmm_proxy")
FILE = ROOT / "tests/messages/messages.txt"

# Exceptions by their names, and the functions that make one of a text, or a doctor's finding.
_ERRORS = re.compile(
    r"\w*(Error|Failure|Failed|HTTPException|SystemExit)|_?(refuse|refusal|fault|denied|failure|call_error|wrong)"
)
# Tables of words for people, and functions that choose some: what they say is put into the texts above.
_TABLES = re.compile(r"_?[A-Z_]*(REASONS|MEANS|ADVICE|HINTS|RULES|RESET|RESTART|REPLACE|LOOK|INSIDE|REACHED)")
_WORDING = re.compile(r"_*(why|advice|hint|noticed|reason|of_namespaces|words_of)\w*")
_LOGGED = {"warning", "error", "critical", "exception"}
# A value's name in the code says what it is; a longer expression says it no better than its beginning.
_NAME_CHARACTERS = 40
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def collect(root: Path = ROOT) -> Mapping[str, set[str]]:
    """The modules that say each text, by the text."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for text in texts_of(path.read_text(encoding="utf-8")):
                found[text].add(module)
    return found


def texts_of(source: str) -> Iterator[str]:
    """The texts of one module's source."""
    tree = ast.parse(source)
    of_module = _named_texts(tree)
    for name, values in of_module.items():
        if _TABLES.fullmatch(name):
            yield from _phrases(values)
    for function in _functions(tree):
        named = {**of_module, **_named_texts(function)}
        if isinstance(function, ast.FunctionDef) and _WORDING.fullmatch(function.name):
            yield from _phrases([node.value for node in _own_nodes(function) if isinstance(node, ast.Return) and node.value])
        for node in _own_nodes(function):
            if isinstance(node, ast.Call) and _says(node):
                for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                    yield from (text for text in _templates(argument, named) if " " in text.strip())


def _functions(tree: ast.Module) -> Iterator[Function]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """What is in it, and not in a function inside."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def _named_texts(function: Function) -> Mapping[str, list[ast.expr]]:
    """What the function's variables are set to: a text is often made before it is used."""
    found: defaultdict[str, list[ast.expr]] = defaultdict(list)
    for node in _own_nodes(function):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[name].append(value)
    return found


def _phrases(values: list[ast.expr]) -> Iterator[str]:
    """Every text of several words in `values`, wherever it stands in them."""
    for value in values:
        inside: set[ast.AST] = set()
        for node in ast.walk(value):
            if isinstance(node, ast.JoinedStr):
                inside.update(ast.walk(node))
                inside.discard(node)
        for node in ast.walk(value):
            if node not in inside and isinstance(node, ast.Constant | ast.JoinedStr):
                yield from (text for text in _templates(node, {}) if " " in text.strip())


def _says(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="log"), attr=level):
            return level in _LOGGED
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return _ERRORS.fullmatch(name) is not None
    return False


def _templates(node: ast.expr, named: Mapping[str, list[ast.expr]], depth: int = 0) -> list[str]:
    """What the text that `node` makes may be; empty where it is another's."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(_part(part) for part in parts)]
        case ast.IfExp(body=one, orelse=other):
            return [*_templates(one, named, depth), *_templates(other, named, depth)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = _templates(right, named, depth)
            return [one + end for one in _templates(left, named, depth) for end in ends]
        case ast.Name(id=name) if name in named and depth == 0:
            return [text for value in named[name] for text in _templates(value, named, 1)]
    return []


def _part(part: ast.expr) -> str:
    match part:
        case ast.Constant(value=text):
            return str(text)
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)[:_NAME_CHARACTERS]}}}"
    return ""


def page(found: Mapping[str, set[str]]) -> str:
    """The file: each text once, under the first of the modules that say it."""
    by_module: defaultdict[str, list[str]] = defaultdict(list)
    for text, modules in found.items():
        first, *others = sorted(modules)
        also = f"  (also {', '.join(others)})" if others else ""
        by_module[first].append(f"  {ascii(text)[1:-1] if not text.isprintable() else text}{also}")
    return "".join(f"{module}\n" + "".join(f"{line}\n" for line in sorted(by_module[module])) for module in sorted(by_module))


def main() -> int:
    """Write the file; 1 with --check and another file there."""
    made = page(collect())
    if "--check" in sys.argv[1:]:
        return int(FILE.read_text(encoding="utf-8") != made)
    FILE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
