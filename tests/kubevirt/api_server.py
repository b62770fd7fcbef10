"""A stand-in for a cluster's API server, for one kind: HTTP/1.1 over TLS on loopback, with what is documented of lists and watches.

It refuses what a real one refuses, in its order: no or a wrong token (401), no right to the verb (403), an unknown path (404), a version
that is no number (400), a version from the future (504), one that is forgotten (410: an answer to a list, an event of a watch). A selector
decides what a watch sees: an object that leaves it is DELETED there. Bookmarks come only where they were asked for. Written from
kubernetes.io's "API concepts", sharing no code with the product.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import trustme
import yaml

from tests.kubevirt.objects import Object

GROUP = "/apis/kubevirt.io/v1"
PLURAL = "virtualmachineinstances"
# 400, 401 …: the reason of the Status that comes with it.
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 410: "Expired", 429: "TooManyRequests"}


class Refused(Exception):
    def __init__(self, code: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


def status(code: int, message: str) -> Object:
    reason = REASONS.get(code, "Timeout" if code == 504 else "InternalError")
    named: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**named, "message": message, "reason": reason, "code": code}


@dataclass
class Request:
    namespace: str
    params: dict[str, str]
    token: str
    certificate: bool


@dataclass
class _Watcher:
    request: Request
    selector: dict[str, str]
    events: asyncio.Queue[Object | None] = field(default_factory=asyncio.Queue)


class ApiServer:
    """Objects by (namespace, name). `requests`: what was asked, refused or not."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.ca = folder / "ca.crt"
        self._authority.cert_pem.write_to_path(self.ca)
        self.tokens = {"token-1"}
        # Who asks may do these verbs; in all namespaces where the set has "*".
        self.allowed = {"list": {"*"}, "watch": {"*"}}
        self.installed = True
        self.page_limit = 500
        # Gives the first page again and again.
        self.endless_pages = False
        # Forgets the pages of the next list after its first one.
        self.forget_pages = False
        # A version that is forgotten is refused with status 410, as servers without a watch cache do; else by an event.
        self.gone_as_status = False
        # What is done to a connection in place of an answer: None, "reset" or "silence".
        self.fault: str | None = None
        self.busy: int | None = None
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self._objects: dict[tuple[str, str], Object] = {}
        self._history: list[tuple[int, Object | None, Object | None]] = []
        self._version = 1000
        self._oldest = 1000
        self._watchers: list[_Watcher] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert("127.0.0.1").configure_cert(context)
        # A client may show a certificate; who shows none needs a token.
        self._authority.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            self.cut()

    def kubeconfig(self, token: str = "token-1", **user: str) -> Path:
        file = self._folder / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user or {"token": token}}],
        }
        file.write_text(yaml.safe_dump(config))
        return file

    def client_certificate(self, name: str) -> dict[str, str]:
        """A user of a kubeconfig, by a certificate of the cluster's authority."""
        made = self._authority.issue_cert(common_name=name)
        chain = b"".join(part.bytes() for part in made.cert_chain_pems)
        return {
            "client-certificate-data": base64.b64encode(chain).decode(),
            "client-key-data": base64.b64encode(made.private_key_pem.bytes()).decode(),
        }

    def put(self, changed: Object) -> None:
        """Create or change an object."""
        key = (changed["metadata"]["namespace"], changed["metadata"]["name"])
        self._change(key, {**changed, "metadata": {**changed["metadata"], "resourceVersion": str(self._version + 1)}})

    def remove(self, gone: Object) -> None:
        self._change((gone["metadata"]["namespace"], gone["metadata"]["name"]), None)

    def pass_time(self, changes: int = 10) -> None:
        """Changes of other objects, which no watch here sees."""
        self._version += changes

    def bookmark(self) -> None:
        for watcher in self._watchers:
            if watcher.request.params.get("allowWatchBookmarks") == "true":
                metadata = {"resourceVersion": str(self._version), "creationTimestamp": None}
                watcher.events.put_nowait(
                    {"type": "BOOKMARK", "object": {"kind": "VirtualMachineInstance", "metadata": metadata}}
                )

    def compact(self) -> None:
        """Forget all that was before now."""
        self._oldest = self._version
        self._history.clear()

    def send_to_watches(self, event: Object) -> None:
        for watcher in self._watchers:
            watcher.events.put_nowait(event)

    def end_watches(self) -> None:
        """As after timeoutSeconds."""
        for watcher in self._watchers:
            watcher.events.put_nowait(None)

    def cut(self) -> None:
        """Every connection, at once."""
        for writer in self._writers:
            writer.transport.abort()

    @property
    def watching(self) -> int:
        return len(self._watchers)

    def _change(self, key: tuple[str, str], after: Object | None) -> None:
        before = self._objects.pop(key, None)
        self._version += 1
        if after:
            self._objects[key] = after
        self._history.append((self._version, before, after))
        for watcher in self._watchers:
            if event := _seen(watcher, self._version, before, after):
                watcher.events.put_nowait(event)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await self._answer(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        url = urlsplit(target)
        params = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        token = head.partition("uthorization: Bearer ")[2].partition("\r\n")[0] if "authorization" in headers else ""
        parts = url.path.removeprefix(GROUP).strip("/").split("/")
        shown = bool(writer.get_extra_info("ssl_object").getpeercert())
        request = Request(parts[1] if parts[0] == "namespaces" else "", params, token, shown)
        self.requests.append(request)
        self.asked.set()
        if self.fault == "reset":
            raise ConnectionError
        if self.fault == "silence":
            await asyncio.Event().wait()
        try:
            self._judge(method, url.path, request)
            selector = _selector(params.get("labelSelector", ""))
            if params.get("watch") in {"true", "1"}:
                await self._watch(_Watcher(request, selector), writer)
                return
            code, body, more = 200, self._list(request, selector), ""
        except Refused as refused:
            code, body = refused.code, status(refused.code, str(refused))
            more = "" if refused.retry_after is None else f"Retry-After: {refused.retry_after}\r\n"
        data = json.dumps(body).encode()
        reason = "OK" if code == 200 else "Refused"
        writer.write(
            f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode()
        )
        writer.write(data)
        await writer.drain()

    def _judge(self, method: str, path: str, request: Request) -> None:
        if self.busy is not None:
            raise Refused(429, "Too many requests, please try again later.", retry_after=self.busy)
        if request.token not in self.tokens and not request.certificate:
            raise Refused(401, "Unauthorized")
        verb = "watch" if "watch" in request.params else "list"
        scope = f'in the namespace "{request.namespace}"' if request.namespace else "at the cluster scope"
        if method != "GET" or not {"*", request.namespace} & self.allowed[verb]:
            raise Refused(
                403,
                f'{PLURAL}.kubevirt.io is forbidden: User "system:serviceaccount:guestscope:vmm-proxy" cannot {verb} resource '
                f'"{PLURAL}" in API group "kubevirt.io" {scope}',
            )
        whole = f"{GROUP}/{PLURAL}" if not request.namespace else f"{GROUP}/namespaces/{request.namespace}/{PLURAL}"
        if path != whole or not self.installed:
            raise Refused(404, "the server could not find the requested resource")

    def _list(self, request: Request, selector: dict[str, str]) -> Object:
        params, version, start = request.params, self._version, ""
        if "continue" in params:
            if "resourceVersion" in params:
                raise Refused(400, "specifying resource version is not allowed when using continue")
            go_on = json.loads(base64.b64decode(params["continue"]))
            version, start = go_on["rv"], "" if self.endless_pages else go_on["start"]
            if self.forget_pages or version < self._oldest:
                self.forget_pages = False
                raise Refused(410, "The provided continue parameter is too old to display a consistent list result.")
        elif (asked := _version(params)) > self._version:
            raise Refused(504, f"Too large resource version: {asked}, current: {self._version}")
        found = [
            (f"{namespace}/{name}", known)
            for (namespace, name), known in sorted(self._objects.items())
            if request.namespace in {"", namespace} and _matches(known, selector)
        ]
        found = [each for each in found if each[0] > start]
        metadata: Object = {"resourceVersion": str(version)}
        limit = int(params.get("limit", "0"))
        # "0" is served from the cache, which makes no pages.
        if limit and params.get("resourceVersion") != "0" and len(found) > min(limit, self.page_limit):
            found = found[: min(limit, self.page_limit)]
            go_on = {"v": "meta.k8s.io/v1", "rv": version, "start": found[-1][0]}
            metadata["continue"] = base64.b64encode(json.dumps(go_on).encode()).decode()
        items = [known for _, known in found]
        return {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceList", "metadata": metadata, "items": items}

    async def _watch(self, watcher: _Watcher, writer: asyncio.StreamWriter) -> None:
        asked = _version(watcher.request.params)
        if asked > self._version:
            raise Refused(504, f"Too large resource version: {asked}, current: {self._version}")
        int(watcher.request.params.get("timeoutSeconds", "1800"))
        if asked < self._oldest:
            gone = status(410, f"too old resource version: {asked} ({self._oldest})")
            if self.gone_as_status:
                raise Refused(410, gone["message"])
            watcher.events.put_nowait({"type": "ERROR", "object": gone})
            watcher.events.put_nowait(None)
        for version, before, after in self._history:
            if version > asked and (event := _seen(watcher, version, before, after)):
                watcher.events.put_nowait(event)
        self._watchers.append(watcher)
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            await writer.drain()
            while event := await watcher.events.get():
                line = json.dumps(event).encode() + b"\n"
                # In two pieces: a line of a watch may come in any.
                for piece in (line[: len(line) // 2], line[len(line) // 2 :]):
                    writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                    await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            self._watchers.remove(watcher)


def _version(params: dict[str, str]) -> int:
    text = params.get("resourceVersion", "") or "0"
    if not text.isdecimal():
        raise Refused(400, f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax')
    # 0 is any version, so never one that is forgotten.
    return int(text) or 10**3


def _selector(text: str) -> dict[str, str]:
    terms = [term.split("=", 1) for term in text.split(",") if term]
    if any(len(term) != 2 for term in terms):
        raise Refused(400, "unable to parse requirement: found end of string, expected one of: =, !=, in, notin")
    return {key: value.lstrip("=") for key, value in terms}


def _matches(known: Object, selector: dict[str, str]) -> bool:
    return bool(selector.items() <= known["metadata"]["labels"].items())


def _seen(watcher: _Watcher, version: int, before: Object | None, after: Object | None) -> Object | None:
    """What `watcher` is told of a change; what is not selected does not exist for it."""
    any_state = after or before
    assert any_state
    if watcher.request.namespace not in {"", any_state["metadata"]["namespace"]}:
        return None
    was, now = (known if known and _matches(known, watcher.selector) else None for known in (before, after))
    if now:
        return {"type": "MODIFIED" if was else "ADDED", "object": now}
    if was:
        return {"type": "DELETED", "object": {**was, "metadata": {**was["metadata"], "resourceVersion": str(version)}}}
    return None
