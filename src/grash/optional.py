"""Optional libraries: imported where they are needed, with an error that names the extra to install."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from grash.errors import InputError


def optional_import(module: str, *, extra: str, purpose: str, load: bool = True) -> Any:
    """Return a library that an extra of grash installs. Raises InputError if it is not installed.

    module: may be a submodule. purpose: starts the sentence of the error, e.g. "Reading a Parquet file".
    load: False only looks whether it is installed, and returns None.
    """
    package = module.split(".")[0]
    try:
        if load:
            return importlib.import_module(module)
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
        return None
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        name = package.replace("_", "-")
        raise InputError(
            f"{purpose} needs {name}, which is not installed: pip install 'grash-kge[{extra}]'."
        ) from error
