"""The folder of a search: its lock, its description (search.yaml), its dataset, and what trials leave in it.

search.yaml        settings, versions, dataset              ledger.jsonl   everything that happened (`ledger.py`)
dataset/           the encoded graph, unless it was encoded already
round-1/cfg-0007/  checkpoint and saved state of a trial, removed when no longer needed
best.yaml          the winning configuration                model/         the trained winner
report.html, optuna.log, log.txt: views of the ledger
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from grash import __version__
from grash.data.dataset import DATASET_FILE, Dataset
from grash.errors import ConfigError, FormatError, InputError, OutputError
from grash.files import check_schema
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.settings import SearchSettings, make_settings, recorded_settings
from grash.yaml_files import read_yaml, write_yaml

SCHEMA, VERSION = "grash-search", 1
SEARCH_FILE, BEST_FILE, LOCK_FILE = "search.yaml", "best.yaml", ".lock"


class RunFolder:
    """A run folder that only this process writes to, from `__enter__` to `__exit__`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK_FILE).open("a+", encoding="utf-8")
        except OSError as error:
            raise OutputError(self.path, error.strerror or str(error)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise InputError(
                f"{self.path} is in use by {holder}: wait for it, stop it, or give another folder."
            ) from error
        try:
            lock.truncate(0)
            os.write(lock.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except OSError as error:
            lock.close()
            raise OutputError(self.path, error.strerror or str(error)) from error
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def open_search(self, settings: SearchSettings, dataset: Dataset, source: str) -> None:
        """Write search.yaml into a new folder; in an existing one, check that it is of this search."""
        check_folder(self.path, settings, dataset)
        if not (self.path / SEARCH_FILE).is_file() and not (self.path / LEDGER_FILE).is_file():
            write_search(self.path, settings, dataset, source)

    def trial(self, round_number: int, number: int) -> Path:
        """Return the folder of a trial; round 0 is the final training."""
        name = f"round-{round_number}" if round_number else "final"
        return self.path / name / f"cfg-{number:04}"

    def remove_checkpoint(self, round_number: int, number: int) -> None:
        """Remove the checkpoint of a trial, and its folder if it is empty then.

        It is renamed first, so a kill cannot leave a partial checkpoint that looks complete.
        """
        folder = self.trial(round_number, number)
        with suppress(OSError):
            (folder / "checkpoint").rename(folder / f".checkpoint.{os.getpid()}.part")
        for leftover in [p for p in folder.iterdir() if _is_leftover(p)] if folder.is_dir() else []:
            shutil.rmtree(leftover, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()

    def tidy(self, state: SearchState) -> None:
        """Remove saved states that no trial will continue from, and partial files of a killed process.

        A search that has failed keeps its states: it may be resumed.
        """
        complete = state.finished and not state.failed
        for leftover in [p for p in self.path.iterdir() if _is_leftover(p)] + [self.path / "final"] * complete:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        for number, this in enumerate(state.rounds, 1):
            following = state.rounds[number] if number < len(state.rounds) else None
            done = complete or (following is not None and following.survivors is not None)
            if done or this.survivors is not None:
                self._keep_only(number, [] if done else this.survivors or [])

    def _keep_only(self, round_number: int, numbers: list[int]) -> None:
        folder, kept = self.path / f"round-{round_number}", {self.trial(round_number, n) for n in numbers}
        for trial in folder.iterdir() if folder.is_dir() else ():
            if trial not in kept:
                shutil.rmtree(trial, ignore_errors=True)
        with suppress(OSError):  # absent or not empty
            folder.rmdir()


def write_search(folder: Path, settings: SearchSettings, dataset: Dataset, source: str) -> None:
    """Write search.yaml, and the encoded graph if the source is not one that workers can map."""
    if source and (Path(source) / DATASET_FILE).is_file():
        encoded = str(Path(source).resolve())
    else:
        encoded = "dataset"
        if not (folder / encoded / DATASET_FILE).is_file():
            dataset.save(folder / encoded)
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "grash": __version__,
        "python": platform.python_version(),
        "dataset": {"name": dataset.name, "source": source, "folder": encoded, "fingerprint": dataset.fingerprint},
        "settings": settings.model_dump(mode="json"),
    }
    write_yaml(folder / SEARCH_FILE, content)


def read_search(folder: Path) -> dict[str, Any]:
    """Return the checked content of search.yaml."""
    path = Path(folder) / SEARCH_FILE
    if not path.is_file():
        why = f"it has no {SEARCH_FILE}" if Path(folder).exists() else "it does not exist"
        raise InputError(f"{folder} is not the run folder of a search: {why}.")
    content = check_schema(read_yaml(path, strict=True), path, schema=SCHEMA, version=VERSION)
    dataset, settings = content.get("dataset"), content.get("settings")
    entries = {"name", "source", "folder", "fingerprint"}
    if not isinstance(settings, dict) or not isinstance(dataset, dict) or not entries <= dataset.keys():
        raise FormatError(f"{path} is damaged: its 'dataset' or 'settings' entry is incomplete.")
    return content


def read_settings(folder: Path) -> SearchSettings:
    return recorded_settings(read_search(folder)["settings"])


def dataset_folder(folder: Path) -> Path:
    """Return the folder of the encoded graph of a search."""
    return Path(folder) / read_search(folder)["dataset"]["folder"]  # joining an absolute path gives that path


def cores_file(encoded: Path, degree: str) -> Path | None:
    """Return the file in an encoded graph that caches its peel order; None if it cannot be written."""
    return Path(encoded) / f"cores-{degree}.npy" if os.access(encoded, os.W_OK) else None


def read_dataset(folder: Path) -> Dataset:
    """Return the dataset of a search, mapped from its file."""
    encoded = dataset_folder(folder)
    if not (encoded / DATASET_FILE).is_file():
        raise InputError(f"The graph of {folder} is no longer in {encoded}: put it back to resume the search.")
    dataset = Dataset.load(encoded)
    if dataset.fingerprint != read_search(folder)["dataset"]["fingerprint"]:
        raise InputError(f"{encoded} is not the graph that {folder} started with: put that one back to resume.")
    return dataset


def check_same(folder: Path, settings: SearchSettings, dataset: Dataset) -> None:
    """Raise an error that shows the difference if the folder's search has another dataset or other settings."""
    content = read_search(folder)
    if content["dataset"]["fingerprint"] != dataset.fingerprint:
        raise InputError(
            f"{folder} is a search on another dataset ({content['dataset']['name']}, fingerprint "
            f"{content['dataset']['fingerprint'][:12]}; given: {dataset.name}, {dataset.fingerprint[:12]}): give "
            f"another folder with -o."
        )
    there, now = make_settings(content["settings"]).model_dump(), settings.model_dump()
    changed = [name for name in now if name != "final_train" and there[name] != now[name]]
    difference = [f"{name}: {_text(there[name])} there, {_text(now[name])} now" for name in changed]
    if difference:
        raise ConfigError(
            f"{folder} is a search with other settings ({'; '.join(difference)}): give the same settings to resume it, "
            f"another folder with -o to start a new search, or --extend for more trials or budget."
        )


def _text(value: object) -> str:
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def default_folder(dataset: Dataset, settings: SearchSettings, *, parent: str | Path = "runs") -> Path:
    """Return PARENT/DATASET-MODELS-search, with -2, -3, … if it is used by something else than this search."""
    base = Path(parent) / f"{dataset.name}-{'-'.join(settings.models)}-search".replace("/", "-")
    folder, number = base, 1
    while folder.exists() and not _can_take(folder, dataset, settings):
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def check_folder(folder: Path, settings: SearchSettings, dataset: Dataset) -> None:
    """Raise an error if the folder holds another search or other files."""
    if (folder / SEARCH_FILE).is_file():
        check_same(folder, settings, dataset)
    elif folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, and a search needs a folder: give another name.")
    elif folder.exists() and any(not _may_precede_search(p, dataset) for p in folder.iterdir()):
        raise InputError(f"{folder} holds other files, so no search can start there: give another folder.")


def _can_take(folder: Path, dataset: Dataset, settings: SearchSettings) -> bool:
    """Whether the folder is empty, or holds this search and it is not finished."""
    if all(path.name == LOCK_FILE for path in folder.iterdir()):
        return True
    try:
        check_same(folder, settings, dataset)
        ledger = folder / LEDGER_FILE
        return not (ledger.exists() and SearchState.replay(read_ledger(ledger)).finished)
    except (InputError, ConfigError, OSError, ValueError):
        return False


def _may_precede_search(path: Path, dataset: Dataset) -> bool:
    """Whether a file may be in a folder without search.yaml: the lock, or what a killed start of this search left."""
    if path.name == "dataset" and (path / DATASET_FILE).is_file():
        return Dataset.load(path).fingerprint == dataset.fingerprint
    return path.name == LOCK_FILE or _is_leftover(path)


def _is_leftover(path: Path) -> bool:
    """Whether it is a temporary file (`grash.files`) of a process that was killed."""
    return path.name.startswith(".") and path.suffix in (".part", ".old")
