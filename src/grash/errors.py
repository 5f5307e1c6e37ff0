"""Errors that grash raises on purpose. Each message states what was given, what is needed and what to do.

    GrashError              base class
    ├── InputError          a file or value that cannot be used
    ├── ConfigError         a setting that is unknown, out of range or contradicts another setting
    ├── UnknownName         an entity, relation, model or dataset that does not exist; carries suggestions
    ├── FormatError         a grash file (dataset, model, checkpoint) that is damaged or has another version
    ├── MemoryPlanError     the request does not fit into memory
    ├── OutputError         a file that could not be written (full disk, no permission)
    ├── Diverged            the loss became NaN, infinite or exploded
    ├── SearchFailed        a search in which every trial failed
    └── RankLost            another rank of a training ended or cannot be reached; the message names this one

The command line prints the message and exits with the error's `exit_code`. A traceback means a bug in grash.
UNFINISHED and INTERRUPTED are the exit codes of commands that were stopped without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

UNFINISHED = 7  # exit code of a search or study that --max-seconds stopped; it can be continued
INTERRUPTED = 130  # exit code of a command that Ctrl-C stopped
_MEMORY_MESSAGES = ("allocate memory", "out of memory", "ALLOC_FAILED")


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return " Did you mean …?" with similar names, to end a sentence; or `otherwise` if there are none."""
    import difflib  # takes longer than all of `import grash`

    close = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f" Did you mean {', '.join(close)}?" if close else otherwise


class GrashError(Exception):
    exit_code = 2


class InputError(GrashError):
    pass


class ConfigError(GrashError):
    pass


class UnknownName(GrashError):
    def __init__(self, kind: str, name: str, suggestions: Sequence[str] = (), *, hint: str = "") -> None:
        self.kind, self.name, self.suggestions = kind, name, list(suggestions)
        message = f"There is no {kind} named {name!r}."
        if self.suggestions:
            message += " Did you mean " + ", ".join(repr(s) for s in self.suggestions) + "?"
        super().__init__(message + (f" {hint}" if hint else ""))


class FormatError(GrashError):
    pass


class MemoryPlanError(GrashError):
    exit_code = 3


class OutputError(GrashError):
    exit_code = 4

    def __init__(self, path: object, reason: str, *, then: str = "Existing files are unchanged.") -> None:
        self.reason = reason
        super().__init__(f"{path} could not be written: {reason}. {then}")


class Diverged(GrashError):
    exit_code = 5
    epoch = 0.0  # epoch of the training, if known
    history: Sequence[object] = ()  # validations before that, if known


class SearchFailed(GrashError):
    exit_code = 6


class RankLost(GrashError):
    exit_code = 8


def is_memory_error(error: Exception) -> bool:
    """Return whether memory ran out. torch and CUDA libraries raise RuntimeErrors for it, known by their text only."""
    if isinstance(error, RuntimeError):
        return any(message in str(error) for message in _MEMORY_MESSAGES)
    return isinstance(error, MemoryError | MemoryPlanError)
