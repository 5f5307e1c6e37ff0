"""Which folder a search gets, and that it may write there.

Comes from a search's dataset and settings, goes to its run folder (`folder.py`).
"""

from __future__ import annotations

from pathlib import Path

from grash.data.dataset import DATASET_FILE, Dataset
from grash.errors import ConfigError, InputError
from grash.search.folder import LOCK_FILE, SEARCH_FILE, RunFolder, check_same, is_leftover, write_search
from grash.search.ledger import LEDGER_FILE, read_ledger
from grash.search.settings import SearchSettings
from grash.search.state import SearchState


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
