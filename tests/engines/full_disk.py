"""A disk that is full after any number of pages: a program that runs a command on a small tmpfs, again and again.

    unshare -rm python -m engines.full_disk FOLDER search 1

mounts a tmpfs at FOLDER, runs the command with 0, 1, 2, … pages (of 4 KiB, in steps of the last argument) free until it
succeeds, and checks each time: a sentence and exit code 4, no file half written, and with the disk free again the same
command ends with the same bytes as on an empty disk. It prints the number of full disks by exit code as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from importlib import import_module
from pathlib import Path

PAGE = 4096
_SIZE = 64 << 20
COMMANDS = {
    "train": ["train", "GRAPH", "--dim", "8", "--epochs", "2", "--valid-every", "1", "--device", "cpu", "--out"],
    "search": [
        "search", "GRAPH", "--dim", "8", "--epochs", "2", "--n-trials", "4", "--eta", "2", "--variant", "epoch",
        "--engine", "sequential", "--device", "cpu", "--quiet", "--set", "batch_size=512",
        "--set", "training=negative_sampling", "--set", "negatives_head=5", "--set", "negatives_tail=5", "--out",
    ],
    "prepare": ["prepare", "GRAPH", "--out"],
}  # fmt: skip
_NOT_COMPARED = ("report.html", "optuna.log", ".optuna.log.lock", "log.txt", ".lock", "ledger.jsonl")


def main(mount: Path, command: str, step: int) -> None:
    from engines.searches import shifts, small_search
    from grash.training import loop

    # Every run needs these. Training would start numba's threads, which do not survive a fork.
    small_search(Path(tempfile.mkdtemp()) / "run").plan(probe=False)
    for name in ("grash.cli.app", "grash.report.progress", "grash.api.training", "jinja2"):
        import_module(name)

    (loop.train_stack.__kwdefaults__ or {})["save_every_seconds"] = 0.0
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(mount)], check=True)
    logs = Path(tempfile.mkdtemp())
    graph = logs / "graph.tsv"
    names = [f"{h}\t{r}\t{t}" for h, r, t in shifts().train.tolist()]
    graph.write_text("\n".join(names) + "\n")
    words = [str(graph) if word == "GRAPH" else word for word in COMMANDS[command]]
    out = mount / "out"
    assert run(words, out, logs) == 0, (logs / "err").read_text()
    wanted = content_of(out)
    codes: Counter[int] = Counter()
    code, pages = 1, 0
    while code:
        shutil.rmtree(out, ignore_errors=True)
        assert not list(mount.iterdir()), list(mount.iterdir())
        fill(mount, pages)
        code = run(words, out, logs)
        errors = (logs / "err").read_text()
        where = f"{pages} pages free, exit code {code}: {errors[-3000:]}"
        codes[code] += 1
        assert code in (0, 4) and "Traceback" not in errors, where
        assert code == 0 or "could not be written: " in errors, where
        assert code == 0 or "No space left on device" in errors or "the disk may be full" in errors, where
        parts = [p for p in mount.rglob("*") if p.name.endswith((".part", ".old"))]
        assert not parts, (where, parts)
        (mount / "ballast").unlink()
        assert run(words, out, logs) == 0 if code else True, (where, (logs / "err").read_text())
        found = content_of(out)
        assert found == wanted, (where, [name for name in {*found, *wanted} if found.get(name) != wanted.get(name)])
        pages += step
    print(json.dumps(codes))


def fill(mount: Path, pages: int) -> None:
    """Leave this many pages free."""
    with (mount / "ballast").open("wb") as file:
        free = os.statvfs(mount)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize - pages * PAGE)


def run(words: list[str], out: Path, logs: Path) -> int:
    """Run a command in a forked process and return its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            handle = os.open(logs / "err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            from grash.cli import main as command_line

            code = command_line([*words, str(out)])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content_of(out: Path) -> dict[str, bytes]:
    files = (p for p in sorted(out.rglob("*")) if p.is_file() and p.name not in _NOT_COMPARED)
    return {str(p.relative_to(out)): p.read_bytes() for p in files}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
