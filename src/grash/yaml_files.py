"""YAML files: settings, search spaces, configurations.

Reading makes only plain values (no tags, so no code runs). A file is refused with a sentence if it is too large, nested
too deeply, grows by its aliases ("billion laughs"), or has a key twice. A file that grash writes ends with a comment
line, the CRC-32 of what is before it, so that damage and edits are noticed.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from grash.errors import FormatError, InputError
from grash.files import atomic_file

MAX_BYTES = 4 << 20
_CHECKSUM = b"# checksum: "
_log = logging.getLogger(__name__)
_MAX_VALUES = 200_000  # with every alias written out


def write_yaml(path: Path, content: dict[str, Any], *, comment: str = "") -> None:
    """Write a YAML file with its checksum. comment: one line at its beginning."""
    with atomic_file(path) as temporary:
        text = (f"# {comment}\n" if comment else "") + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        temporary.write_bytes(with_checksum(text.encode()))


def with_checksum(content: bytes) -> bytes:
    """Return the content of a file with its checksum as the last line."""
    return content + _CHECKSUM + b"%08x\n" % zlib.crc32(content)


def read_yaml(path: Path, *, strict: bool = False) -> Any:
    """Return the content of a YAML file.

    If its checksum is wrong, it is used with a warning; with `strict`, a wrong or missing one is an error.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{path} is larger than {MAX_BYTES >> 20} MiB, too large for a file of settings.")
        matches = matches_checksum(content)
        if strict and not matches:
            raise FormatError(
                f"{path} was edited or is damaged: its content does not match its last line, the checksum. Undo the "
                f"change, or restore a copy."
            )
        if matches is False:
            _log.warning("%s was edited by hand: its content does not match its checksum. It is used as it is.", path)
        return parse_yaml(content.decode("utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}.") from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not UTF-8, or an impossible date
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as YAML: {reason}.".replace("..", ".")) from error


def matches_checksum(content: bytes) -> bool | None:
    """Return whether a file ends with the checksum of what is before it; None if it has no checksum."""
    before, mark, _ = content.rpartition(_CHECKSUM)
    return content == with_checksum(before) if mark else None


def read_yaml_mapping(path: Path) -> dict[str, Any]:
    """Return the `name: value` lines of a YAML file."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold `name: value` lines, one per setting.")
    return values


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text; a ValueError or YAMLError states what is wrong."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _n_values(node, {}) > _MAX_VALUES:
            raise ValueError(f"its aliases stand for more than {_MAX_VALUES:,} values")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:bool":  # `off` is a key here, and false in YAML 1.1
                key.tag = "tag:yaml.org,2002:str"
            if str(key.value) in names:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} occurs twice", problem_mark=key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


def _n_values(node: Any, known: dict[int, float]) -> float:
    """Return the number of values below a node, with every alias written out; infinite if a node contains itself."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = float("inf")
        below = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_n_values(part, known) for part in below)
    return known[id(node)]
