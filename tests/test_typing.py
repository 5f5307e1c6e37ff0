"""The source has no type errors, type checkers find typical typos in settings, and editors complete the names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

import grash
from grash import keywords
from grash.search.settings import SearchSettings
from grash.training.config import TrainConfig

CASES = Path(__file__).parent / "typing_cases"
ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"


def pyright(program: str, *arguments: str) -> list[str]:
    """Return the command of pyright, which needs Node.js; skip where it is missing."""
    pytest.importorskip("pyright", reason="pyright is not installed")
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js, which is not installed")
    module = {"pyright": "pyright", "pyright-langserver": "pyright.langserver"}[program]
    return [sys.executable, "-m", module, *arguments]


def test_every_setting_is_a_keyword() -> None:
    assert set(SearchSettings.model_fields) <= set(keywords.SearchKeywords.__annotations__)
    assert set(TrainConfig.model_fields) <= set(keywords.TrainKeywords.__annotations__)


@pytest.mark.slow
def test_mypy_finds_no_error_in_the_source() -> None:
    pytest.importorskip("mypy", reason="mypy is in the extra dev")
    ran = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_pyright_reports_each_of_ten_typos_and_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(CASES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SRC)]}))
    command = pyright("pyright", "--outputjson", "--project", str(tmp_path), "--pythonpath", sys.executable)
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if not ran.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {ran.stderr[-200:]}")
    found = json.loads(ran.stdout)["generalDiagnostics"]
    lines = {(Path(d["file"]).name, d["range"]["start"]["line"] + 1) for d in found if d["severity"] == "error"}
    text = (CASES / "typos.py").read_text().splitlines()
    wrong = {("typos.py", i) for i, line in enumerate(text, 1) if line.endswith("# wrong")}
    assert len(wrong) == 10 and lines == wrong


@pytest.mark.slow
def test_the_language_server_completes_the_settings(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(SRC)]}))
    file = tmp_path / "script.py"
    file.write_text("import grash\n\ngrash.Search('world', n_)\n")
    command = pyright("pyright-langserver", "--stdio")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            names = completions(server.stdin, server.stdout, tmp_path, file, line=2, character=24)
        finally:
            server.kill()
    assert {"n_trials="} <= names, sorted(names)[:20]


@pytest.mark.slow
def test_jupyter_completes_the_settings() -> None:
    jedi = pytest.importorskip("jedi", reason="jedi is not installed")

    def completed(text: str) -> set[str]:
        return {c.name for c in jedi.Interpreter(text, [{"grash": grash}]).complete()}

    assert {"n_trials=", "negatives_floor="} <= completed("grash.Search('world', n")
    assert {"lr="} <= completed("grash.train('world', l")
    assert {"separator=", "seed="} <= completed("grash.load_dataset('world', se")


def completions(to: IO[bytes], from_: IO[bytes], root: Path, file: Path, *, line: int, character: int) -> set[str]:
    """Ask a language server what can be written at a place of a file."""

    def send(method: str, number: int | None, **params: Any) -> None:
        body = {"jsonrpc": "2.0", "method": method, "params": params} | ({} if number is None else {"id": number})
        data = json.dumps(body).encode()
        to.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        to.flush()

    def receive(number: int) -> Any:
        while True:
            size = 0
            while header := _header(from_):
                name, _, value = header.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
            message = json.loads(from_.read(size))
            if message.get("id") == number and "method" not in message:
                return message["result"]
            if "id" in message:  # a question of the server, e.g. for its configuration
                n_items = len(message["params"].get("items", [])) if "params" in message else 0
                data = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": [None] * n_items}).encode()
                to.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
                to.flush()

    folders = [{"uri": root.as_uri(), "name": "root"}]
    send("initialize", 1, processId=None, rootUri=root.as_uri(), workspaceFolders=folders, capabilities={})
    receive(1)
    send("initialized", None)
    document = {"uri": file.as_uri(), "languageId": "python", "version": 1, "text": file.read_text()}
    send("textDocument/didOpen", None, textDocument=document)
    place = {"line": line, "character": character}
    send("textDocument/completion", 2, textDocument={"uri": file.as_uri()}, position=place)
    return {item["label"] for item in receive(2)["items"]}


def _header(from_: IO[bytes]) -> bytes:
    line = from_.readline()
    if not line:
        pytest.skip("the language server of pyright does not run here")
    return line.strip()
