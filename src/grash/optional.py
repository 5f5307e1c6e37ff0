"""Optional libraries: imported where they are needed, with an error that names the extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from grash.errors import InputError


def optional_import(module: str, *, extra: str, purpose: str) -> Any:
    """Return a library that an extra of grash installs. Raises InputError if it is not installed.

    module: may be a submodule. purpose: starts the sentence of the error, e.g. "Reading a Parquet file".
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        name = package.replace("_", "-")
        raise InputError(
            f"{purpose} needs {name}, which is not installed: pip install 'grash-kge[{extra}]'."
        ) from error
