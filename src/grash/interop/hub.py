"""Share model folders through the Hugging Face Hub: `grash push` and `grash pull` (extra `hub`).

Only the files of a model folder travel, by name; they contain no code. A pulled folder is compared with its checksums
and loaded once before it takes its place. Logging in is up to huggingface_hub (`hf auth login`); grash reads no token.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grash.errors import GrashError, InputError
from grash.files import atomic_folder
from grash.models.store import check_model_folder, load_model, verify_model
from grash.optional import optional_import

FILES = [
    "model.json", "embeddings.safetensors", "calibration.json", "checksums.json", "README.md",
    "dataset/dataset.json", "dataset/checksums.json", "dataset/*.npy",
]  # fmt: skip
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}\Z")


def push_model(folder: str | Path, repository: str, *, public: bool = False, endpoint: str | None = None) -> str:
    """Upload a model folder to OWNER/NAME, which is created as a private repository if it does not exist.

    Returns the address of the repository. public: create it as a public one. endpoint: of another server than the Hub.
    """
    hub, folder = _hub("grash push"), Path(folder)
    _check_name(repository)
    if not (folder / "model.json").is_file() and (folder / "model" / "model.json").is_file():
        folder = folder / "model"
    if not (folder / "model.json").is_file():
        raise InputError(f"{folder} is not a model folder: it has no model.json.")
    verify_model(folder)
    api = hub.HfApi(endpoint=endpoint)
    with _hub_errors(hub, repository):
        address = api.create_repo(repository, private=not public, exist_ok=True)
        message = "Upload a knowledge graph embedding model"
        api.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=FILES, commit_message=message)
    return str(address)


def pull_model(
    repository: str,
    folder: str | Path,
    *,
    revision: str | None = None,
    overwrite: bool = False,
    endpoint: str | None = None,
) -> Path:
    """Download the model folder of OWNER/NAME and return it; it is written completely or not at all.

    revision: a branch, tag or commit. endpoint: of another server than the Hub.
    """
    hub, folder = _hub("grash pull"), Path(folder)
    _check_name(repository)
    check_model_folder(folder, overwrite=overwrite)
    with atomic_folder(folder, overwrite=overwrite) as temporary:
        with _hub_errors(hub, repository):
            hub.snapshot_download(
                repository, revision=revision, local_dir=temporary, allow_patterns=FILES, endpoint=endpoint
            )
        shutil.rmtree(temporary / ".cache", ignore_errors=True)
        if not (temporary / "model.json").is_file():
            raise InputError(f"{repository} is not a model of grash: it has no model.json.")
        try:
            load_model(temporary)
        except GrashError as error:
            message = str(error).replace(str(temporary), repository)
            raise type(error)(f"{message} Nothing was written to {folder}.") from None
    return folder


def _hub(purpose: str) -> Any:
    return optional_import("huggingface_hub", extra="hub", purpose=purpose)


def _check_name(repository: str) -> None:
    if not _REPOSITORY.match(repository):
        raise InputError(f"{repository!r} is not a repository: give OWNER/NAME, e.g. me/world-complex.")


@contextmanager
def _hub_errors(hub: Any, repository: str) -> Iterator[None]:
    """Turn what the library raises into a sentence."""
    try:
        yield
    except hub.errors.RepositoryNotFoundError:
        raise InputError(
            f"{repository} does not exist, or you may not see it: check the name, or log in (hf auth login)."
        ) from None
    except hub.errors.RevisionNotFoundError:
        raise InputError(f"{repository} has no such revision: give a branch, tag or commit.") from None
    except Exception as error:
        if not type(error).__module__.startswith(("huggingface_hub", "httpx")):
            raise
        line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(f"The request for {repository} failed ({line}): check the network and the name.") from None
