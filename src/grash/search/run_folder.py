"""The folder of a run: who writes to it, what it was made for, where things lie.

search.yaml        resolved settings, versions, dataset          ledger.jsonl   the truth
dataset/           the encoded graph, unless it was one already   best.yaml      the winning configuration
round-1/cfg-0007/  what a trial needs to go on; gone when it does not
model/             the trained winner                             report.html, optuna.log, log.txt: views
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

import yaml

from grash import __version__
from grash.data.dataset import DATASET_FILE, Dataset
from grash.errors import ConfigError, FormatError, InputError, OutputError
from grash.files import atomic_file
from grash.search.ledger import LEDGER_FILE, SearchState, read_ledger
from grash.search.settings import AS_BEFORE, SearchSettings, make_settings

SCHEMA, VERSION = "grash-search", 1
SEARCH_FILE, BEST_FILE, LOCK_FILE = "search.yaml", "best.yaml", ".lock"


class RunFolder:
    """A run folder that this process alone writes to, from `__enter__` to `__exit__`."""

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
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        self._lock = lock
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
            self._lock = None

    def trial(self, round_number: int, number: int) -> Path:
        return self.path / f"round-{round_number}" / f"cfg-{number:04}"

    def final(self, number: int) -> Path:
        return self.path / "final" / f"cfg-{number:04}"

    def forget(self, round_number: int, number: int) -> None:
        """Removes the checkpoint of a trial, or (round 0) of a final training, and its folder if nothing else is kept
        there. A kill in between leaves no half of it that would be taken for one."""
        place = self.trial(round_number, number) if round_number else self.final(number)
        aside = place / f".checkpoint.{os.getpid()}.part"
        with suppress(OSError):
            (place / "checkpoint").rename(aside)
        for leftover in [p for p in place.iterdir() if is_leftover(p)] if place.is_dir() else []:
            shutil.rmtree(leftover, ignore_errors=True)
        with suppress(OSError):
            place.rmdir()

    def tidy(self, state: SearchState) -> None:
        """Removes what no trial will go on from: states of dropped configurations and of rounds long closed, and what
        a kill left half-written. A search that has failed may be resumed, and goes on from them."""
        over = state.finished and not state.failed
        leftovers = [p for p in self.path.iterdir() if is_leftover(p)] + [self.path / "final"] * over
        for leftover in leftovers:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        for number, this in enumerate(state.rounds, 1):
            after = state.rounds[number] if number < len(state.rounds) else None
            done = over or (after is not None and after.survivors is not None)
            needed = set() if done else set(this.survivors) if this.survivors is not None else None
            round_folder = self.path / f"round-{number}"
            if needed is None or not round_folder.is_dir():
                continue
            keep = {self.trial(number, n) for n in needed}
            for folder in round_folder.iterdir():
                if folder not in keep:
                    shutil.rmtree(folder, ignore_errors=True)
            if not any(round_folder.iterdir()):
                round_folder.rmdir()

    @property
    def begun(self) -> bool:
        return (self.path / SEARCH_FILE).is_file() or (self.path / LEDGER_FILE).is_file()


def is_leftover(path: Path) -> bool:
    """Whether it was written aside (grash/files.py) by a process that was killed."""
    return path.name.startswith(".") and path.suffix in (".part", ".old")


def write_search(folder: Path, settings: SearchSettings, dataset: Dataset, source: str) -> None:
    """search.yaml, and the encoded graph where the source is none that a worker could map."""
    place = _dataset_place(folder, dataset, source)
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "grash": __version__,
        "python": platform.python_version(),
        "dataset": {
            "name": dataset.name,
            "source": source,
            "folder": place,
            "fingerprint": dataset.fingerprint,
        },
        "settings": settings.model_dump(mode="json"),
    }
    with atomic_file(folder / SEARCH_FILE) as aside:
        aside.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")


def read_search(folder: Path) -> dict[str, Any]:
    """The content of search.yaml, checked."""
    path = Path(folder) / SEARCH_FILE
    if not Path(folder).exists():
        raise InputError(f"{folder} is no run folder of a search: it does not exist.")
    if not path.is_file():
        raise InputError(f"{folder} is no run folder of a search: it has no {SEARCH_FILE}.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise FormatError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise FormatError(f"{path} does not describe a search: its 'schema' entry is missing or another.")
    if content.get("version") != VERSION:
        raise FormatError(
            f"{path} is of version {content.get('version')}, and this grash reads version {VERSION}: use the grash "
            f"that wrote it."
        )
    dataset, settings = content.get("dataset"), content.get("settings")
    entries = {"name", "source", "folder", "fingerprint"}
    if not isinstance(settings, dict) or not isinstance(dataset, dict) or not entries <= dataset.keys():
        raise FormatError(f"{path} is damaged: its 'dataset' or its 'settings' entry is not complete.")
    return content


def read_settings(folder: Path) -> SearchSettings:
    return make_settings({**AS_BEFORE, **read_search(folder)["settings"]})


def dataset_place(folder: Path) -> Path:
    """Where the encoded graph of a run lies."""
    return Path(folder) / read_search(folder)["dataset"]["folder"]  # an absolute path stands for itself


def cores_place(encoded: Path, count: str) -> Path | None:
    """The file beside an encoded graph that keeps its peel order; None where nothing can be written."""
    return Path(encoded) / f"cores-{count}.npy" if os.access(encoded, os.W_OK) else None


def read_dataset(folder: Path) -> Dataset:
    """The dataset of a run, mapped."""
    record, place = read_search(folder)["dataset"], dataset_place(folder)
    if not (place / DATASET_FILE).is_file():
        raise InputError(f"The graph of {folder} is not at {place} any more: put it back there to go on.")
    dataset = Dataset.load(place)
    if dataset.fingerprint != record["fingerprint"]:
        raise InputError(f"{place} is not the graph that {folder} was begun with: put that one back to go on.")
    return dataset


def check_same(folder: Path, settings: SearchSettings, dataset: Dataset) -> None:
    """Refuses to go on with another dataset or other settings, showing the difference."""
    content = read_search(folder)
    if content["dataset"]["fingerprint"] != dataset.fingerprint:
        raise InputError(
            f"{folder} is a search on another dataset ({content['dataset']['name']}, fingerprint "
            f"{content['dataset']['fingerprint'][:12]}; given: {dataset.name}, {dataset.fingerprint[:12]}): give "
            f"another folder with -o."
        )
    difference = settings_difference(make_settings({**AS_BEFORE, **content["settings"]}), settings)
    if difference:
        raise ConfigError(
            f"{folder} is a search with other settings ({'; '.join(difference)}): give the same settings to go on, "
            f"another folder with -o to begin a new search, or --extend for more trials or budget."
        )


def settings_difference(there: SearchSettings, now: SearchSettings) -> list[str]:
    return [
        f"{name}: {getattr(there, name)} there, {getattr(now, name)} now"
        for name in SearchSettings.model_fields
        if name != "final_train" and getattr(there, name) != getattr(now, name)
    ]


def _dataset_place(folder: Path, dataset: Dataset, source: str) -> str:
    if source and (Path(source) / DATASET_FILE).is_file():
        return str(Path(source).resolve())
    if not (folder / "dataset" / DATASET_FILE).is_file():
        dataset.save(folder / "dataset")
    return "dataset"


# = Which folder a search gets, and that it may write there.
# =
# = Comes from a search's dataset and settings, goes to its run folder (`folder.py`).


def search_folder(dataset: Dataset, settings: SearchSettings, *, parent: str | Path = "runs") -> Path:
    """PARENT/DATASET-MODELS-search, or with -2, -3, …: the first that is free or an unfinished search like this."""
    base = Path(parent) / f"{dataset.name}-{'-'.join(settings.models)}-search".replace("/", "-")
    number = 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if (
            not folder.exists()
            or not any(p.name != LOCK_FILE for p in folder.iterdir())
            or _goes_on(folder, dataset, settings)
        ):
            return folder
        number += 1


def _goes_on(folder: Path, dataset: Dataset, settings: SearchSettings) -> bool:
    """Whether the folder holds a search like this one that is not finished yet."""
    try:
        check_same(folder, settings, dataset)
        ledger = folder / LEDGER_FILE
        return not (ledger.exists() and SearchState.replay(read_ledger(ledger)).finished)
    except (InputError, ConfigError, OSError, ValueError):
        return False


def check_claim(folder: Path, settings: SearchSettings, dataset: Dataset) -> None:
    """Refuses a folder that holds another search, or other files."""
    if (folder / SEARCH_FILE).is_file():
        check_same(folder, settings, dataset)
    elif folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, and a search needs a folder: give another name.")
    elif folder.exists() and any(not _is_ours(p, dataset) for p in folder.iterdir()):
        raise InputError(f"{folder} holds other files, so no search is begun there: give another folder.")


def claim_folder(folder: RunFolder, settings: SearchSettings, dataset: Dataset, source: str) -> None:
    """A new folder gets its search.yaml; one that is there must be of this search."""
    check_claim(folder.path, settings, dataset)
    if not folder.begun:
        write_search(folder.path, settings, dataset, source)


def _is_ours(path: Path, dataset: Dataset) -> bool:
    """Whether it may lie in a folder whose search has no search.yaml yet: the lock, or what a kill left there."""
    if path.name == "dataset" and (path / DATASET_FILE).is_file():
        return Dataset.load(path).fingerprint == dataset.fingerprint
    return path.name == LOCK_FILE or is_leftover(path)
