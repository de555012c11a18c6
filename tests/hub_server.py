"""A small Hub on the loopback address: as much of the Hub's HTTP interface as `huggingface_hub` asks for.

Repositories live in memory. Files of tensors go the way of large files: the batch call hands out an address for each
part, the parts are put there, and a last call joins them, whose SHA-256 has to be the name of the file. What is fetched
of them is redirected to another host, as on the Hub. `requests` remembers what was asked for, in order.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_test"
LARGE = (".safetensors", ".pkl")
PART = 1_000_000  # bytes of a part of a large file


class Hub:
    """Repositories by name, each a mapping of names to contents; `large` has what was uploaded in parts, by digest."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.large: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.requests: list[str] = []
        self.commits = 0
        self.serve: Callable[[str, bytes], bytes] = lambda name, data: data  # what is sent instead of a file

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.storage = f"http://localhost:{self.server.server_port}/storage"  # another host, as on the Hub
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def revision(self, repo: str) -> str:
        contents = sorted((name, hashlib.sha1(data).hexdigest()) for name, data in self.repositories[repo].items())
        return hashlib.sha1(repr(contents).encode()).hexdigest()


class Refused(Exception):
    def __init__(self, code: int, name: str) -> None:
        self.code, self.name = code, name


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        self.body = self._received()
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        for method, pattern, function in ROUTES:
            if self.command in method and (match := re.fullmatch(pattern, path)):
                try:
                    return function(self, *match.groups())
                except Refused as error:
                    return self._send(error.code, b"{}", {"X-Error-Code": error.name})
        self._send(404, b"{}")

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def _received(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, code: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _files(self, repo: str) -> dict[str, bytes]:
        if repo not in self.hub.repositories or (repo in self.hub.private and not self._has_token()):
            raise Refused(404 if self._has_token() else 401, "RepoNotFound")
        return self.hub.repositories[repo]

    def _has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _writing(self) -> None:
        if not self._has_token():
            raise Refused(403, "")

    # The calls, in the order of a push and a pull.

    def create(self) -> None:
        self._writing()
        asked = json.loads(self.body)
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.hub.repositories:
            return self._send(409, json.dumps({"url": f"{self.hub.address}/{repo}"}).encode())
        self.hub.repositories[repo] = {".gitattributes": b"*.safetensors filter=lfs\n"}
        if asked.get("visibility") == "private" or asked.get("private"):
            self.hub.private.add(repo)
        self._json({"url": f"{self.hub.address}/{repo}", "name": repo})

    def validate(self) -> None:
        assert json.loads(self.body)["content"].startswith("---\nlibrary_name: dvaepp\n")
        self._json({"errors": [], "warnings": []})

    def preupload(self, repo: str) -> None:
        self._writing()
        files = [each["path"] for each in json.loads(self.body)["files"]]
        modes = [{"path": name, "uploadMode": "lfs" if name.endswith(LARGE) else "regular"} for name in files]
        self._json({"files": [{**each, "shouldIgnore": False} for each in modes]})

    def batch(self, repo: str) -> None:
        self._writing()
        objects = []
        for each in json.loads(self.body)["objects"]:
            oid, count = each["oid"], -(-each["size"] // PART)
            urls = {str(part): f"{self.hub.address}/parts/{oid}/{part}" for part in range(1, count + 1)}
            upload = {"href": f"{self.hub.address}/join/{oid}", "header": {"chunk_size": str(PART), **urls}}
            objects.append({**each, **({} if oid in self.hub.large else {"actions": {"upload": upload}})})
        self._json({"transfer": "multipart", "objects": objects})

    def part(self, oid: str, number: str) -> None:
        self.hub.parts.setdefault(oid, {})[int(number)] = self.body
        self._send(200, b"", {"ETag": hashlib.md5(self.body).hexdigest()})

    def join(self, oid: str) -> None:
        parts = self.hub.parts.pop(oid)
        data = b"".join(parts[number] for number in sorted(parts))
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refused(422, "")
        self.hub.large[oid] = data
        self._json({})

    def commit(self, repo: str) -> None:
        self._writing()
        files = self._files(repo)
        for line in self.body.splitlines():
            key, value = (entry := json.loads(line))["key"], entry["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        self.hub.commits += 1
        url = f"{self.hub.address}/{repo}/commit/{self.hub.revision(repo)}"
        self._json({"commitUrl": url, "commitOid": self.hub.revision(repo), "success": True})

    def information(self, repo: str, revision: str | None = None) -> None:
        files = self._files(repo)
        siblings = [{"rfilename": name, **_metadata(name, data)} for name, data in files.items()]
        self._json({"id": repo, "sha": self.hub.revision(repo), "siblings": siblings})

    def resolve(self, repo: str, revision: str, name: str) -> None:
        data = self._files(repo)[name]
        headers = {"X-Repo-Commit": self.hub.revision(repo)}
        if not name.endswith(LARGE):
            return self._send(200, self.hub.serve(name, data), {**headers, "ETag": f'"{_blob(data)}"'})
        oid = hashlib.sha256(data).hexdigest()
        linked = {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(data))}
        self._send(302, b"", {**headers, **linked, "Location": f"{self.hub.storage}/{oid}/{name}"})

    def stored(self, oid: str, name: str) -> None:
        assert "Authorization" not in self.headers, "a token is not for another host"
        found = [data for files in self.hub.repositories.values() for data in files.values()]
        data = next(data for data in found if hashlib.sha256(data).hexdigest() == oid)
        self._send(200, self.hub.serve(name, data), {"ETag": f'"{oid}"'})


def _metadata(name: str, data: bytes) -> dict[str, Any]:
    large = {"lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 134}}
    return {"size": len(data), "blobId": _blob(data), **(large if name.endswith(LARGE) else {})}


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


NAME = r"([\w.-]+/[\w.-]+)"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("POST", f"/api/models/{NAME}/preupload/main", _Handler.preupload),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", r"/parts/(\w+)/(\d+)", _Handler.part),
    ("POST", r"/join/(\w+)", _Handler.join),
    ("POST", f"/api/models/{NAME}/commit/main", _Handler.commit),
    ("GET", f"/api/models/{NAME}(?:/revision/(\\w+))?", _Handler.information),
    ("GET HEAD", rf"/{NAME}/resolve/(\w+)/(.+)", _Handler.resolve),
    ("GET", r"/storage/(\w+)/(.+)", _Handler.stored),
]
