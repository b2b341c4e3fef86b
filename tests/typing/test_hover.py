"""What an editor shows of a kernel: its signature and its docstring. pyright's language server is asked, as an editor asks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = '''import tilekit as tk

@tk.kernel
def scale(y: tk.Out, x: tk.In, a: float) -> None:
    """y = a * x, in place of y."""
    y.store(tk.load_tile_like(x, y) * a)

scale
scale(
'''


class Server:
    """pyright's language server: JSON-RPC over pipes."""

    def __init__(self, program: str, folder: Path) -> None:
        self.process = subprocess.Popen([program, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder)
        self.count = 0

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        headers = {}
        while line := self.process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value
        message: dict[str, Any] = json.loads(self.process.stdout.read(int(headers[b"content-length"])))
        return message

    def ask(self, method: str, **params: Any) -> Any:
        """The result; what the server asks meanwhile gets nothing."""
        self.count += 1
        self.send(id=self.count, method=method, params=params)
        while True:
            message = self.receive()
            if "method" not in message and message.get("id") == self.count:
                return message["result"]
            if "method" in message and "id" in message:
                self.send(id=message["id"], result=[{} for _ in (message.get("params") or {}).get("items", [])])


def test_an_editor_shows_signature_and_docstring(tmp_path: Path) -> None:
    program = shutil.which(
        "pyright-langserver", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    )
    if program is None:
        pytest.skip("pyright is not installed")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}), "utf-8")
    file, server = tmp_path / "program.py", Server(program, tmp_path)
    file.write_text(PROGRAM, "utf-8")
    document = {"uri": file.as_uri()}
    try:
        folders = [{"uri": tmp_path.as_uri(), "name": "tmp"}]
        server.ask("initialize", processId=os.getpid(), rootUri=tmp_path.as_uri(), capabilities={}, workspaceFolders=folders)
        server.send(method="initialized", params={})
        opened = {**document, "languageId": "python", "version": 1, "text": PROGRAM}
        server.send(method="textDocument/didOpen", params={"textDocument": opened})
        hover = server.ask("textDocument/hover", textDocument=document, position={"line": 7, "character": 2})
        call = server.ask("textDocument/signatureHelp", textDocument=document, position={"line": 8, "character": 6})
    finally:
        server.process.kill()
        server.process.communicate()
    shown = str(hover["contents"])
    assert "(y: Out, x: In, a: float)" in shown
    assert "in place of y" in shown
    assert call["signatures"][0]["label"] == "(y: Out, x: In, a: float) -> KernelLaunch"
