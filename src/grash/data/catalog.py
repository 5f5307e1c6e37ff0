"""The public datasets that grash knows by name, and their download into a folder that load.py can read.

`grash datasets` lists them. The entries are in bundled/catalog.json; a number or checksum that was not verified is
missing there. Counts are those of the published files, before duplicates are dropped.

`load_dataset` downloads a dataset that is named on its first use. Files are fetched into FOLDER/NAME.download (resumed
after a break, verified) and unpacked to FOLDER/NAME. A file that was put into the download folder by hand is verified
and used, so this also works without a network.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import logging
import os
import shlex
import shutil
import socket
import ssl
import sys
import tarfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import IO, Any, ClassVar, Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit

from pydantic import ConfigDict, TypeAdapter

from grash import __version__
from grash.errors import InputError, OutputError, UnknownName
from grash.files import atomic_folder
from grash.formatting import format_bytes

ATTEMPTS = 4
TIMEOUT_SECONDS = 60

Progress = Callable[[str, int, "int | None"], None]  # file name, bytes so far, bytes in all or None

_BLOCK = 1 << 20
_IGNORED = {"__MACOSX", ".DS_Store"}  # members of archives
_log = logging.getLogger(__name__)
CATALOG_FILE = Path(__file__).parent / "bundled" / "catalog.json"


@dataclass(frozen=True)
class RemoteFile:
    """A file to download."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    url: str
    name: str  # its name in the download folder
    size: int | None = None  # bytes
    sha256: str | None = None
    md5: str | None = None
    mirrors: tuple[str, ...] = ()  # further addresses of the same bytes, tried in this order


@dataclass(frozen=True)
class CatalogEntry:
    """A public dataset."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    form: Literal["archive", "files"]  # archives are unpacked
    citation: str
    entities: int | None = None
    relations: int | None = None
    train: int | None = None
    valid: int | None = None
    test: int | None = None
    triples: int | None = None  # of all splits, if their sizes are not all known
    members: dict[str, str] = field(default_factory=dict)  # path in the archive → file name; empty: all members
    columns: str = "head,relation,tail"  # order of the columns, or their names in the header
    license: str | None = None
    notes: str = ""
    instructions: str | None = None  # what to do if grash cannot download it

    @property
    def n_triples(self) -> int | None:
        """Number of triples in all splits."""
        if self.train is None or self.valid is None or self.test is None:
            return self.triples
        return self.train + self.valid + self.test

    @property
    def size(self) -> int | None:
        """Bytes to download, None if the size of a file is unknown."""
        sizes = [file.size for file in self.files if file.size is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.files) else None


_ENTRIES = TypeAdapter(tuple[CatalogEntry, ...]).validate_json(CATALOG_FILE.read_bytes())
CATALOG = {entry.name: entry for entry in _ENTRIES}


def find_entry(name: str) -> CatalogEntry:
    """Return the entry of that name in any case. Raises UnknownName with suggestions."""
    wanted = _entry_name(name)
    if wanted not in CATALOG:
        close = get_close_matches(wanted, CATALOG, n=3, cutoff=0.5)
        raise UnknownName("public dataset", name, close, hint="`grash datasets` lists them all.")
    return CATALOG[wanted]


def named_entry(name: str) -> CatalogEntry | None:
    """Return the entry of that name in any case, or None."""
    return CATALOG.get(_entry_name(name))


def _entry_name(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def cache_folder() -> Path:
    """Return where datasets are stored that are downloaded on first use: GRASH_DATA, or the user's cache folder."""
    if given := os.environ.get("GRASH_DATA"):
        return Path(given).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "grash" / "datasets"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grash" / "datasets"


def fetch(entry: CatalogEntry) -> Path:
    """Return the folder or file of a public dataset in the cache folder; download it on first use.

    One process downloads at a time, and others wait for it. In a terminal, the progress is shown.
    """
    folder = cache_folder()
    if not (folder / entry.name).exists():
        size = "" if entry.size is None else f" ({format_bytes(entry.size)})"
        _log.info("%s%s is downloaded to %s.", entry.name, size, folder)
    with _as_output_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{entry.name}.lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return download(entry, folder, progress=_draw_progress if sys.stderr.isatty() else None)


def _draw_progress(name: str, done: int, total: int | None) -> None:
    of = f" of {format_bytes(total)}" if total else ""
    end = "\n" if done == total else ""
    print(f"\rdownloading {name}: {format_bytes(done)}{of}\x1b[K", end=end, file=sys.stderr, flush=True)


def download(
    entry: CatalogEntry,
    folder: Path,
    *,
    open_url: Callable[..., Any] = urllib.request.urlopen,
    wait: Callable[[float], None] = time.sleep,
    progress: Progress | None = None,
    verify: bool = True,
) -> Path:
    """Return the folder FOLDER/NAME, or the file in it if there is only one; download it unless it exists.

    With verify=False, files may differ from the sizes and checksums of the catalog.
    """
    if entry.instructions is not None:
        raise InputError(f"{entry.name} cannot be downloaded by grash. {entry.instructions}")
    folder = Path(folder)
    target = folder / entry.name
    if not target.exists():
        cache = folder / f"{entry.name}.download"
        files = entry.files if verify else [replace(f, size=None, sha256=None, md5=None) for f in entry.files]
        transfers = [_Transfer(f, cache / f.name, open_url, wait, progress) for f in files]
        try:
            paths = [transfer.fetch() for transfer in transfers]
        except _NotFetched as error:
            by_hand = _by_hand(transfers) if error.by_hand else ""
            unverified = _without_verifying(entry, folder, files) if error.reached else ""
            raise InputError(f"{error}{by_hand}{unverified}") from error
        with atomic_folder(target) as temporary:
            for path in paths:
                if entry.form == "archive":
                    unpack(path, temporary, members=entry.members)
                else:
                    _link_or_copy(path, temporary / path.name)
        _log.info("%s is complete; %s can be deleted.", target, cache)
    if not target.is_dir():
        raise InputError(f"{target} is not a folder. Move it away, or give another folder with --folder.")
    content = sorted(target.iterdir())
    return content[0] if len(content) == 1 and content[0].is_file() else target


class _NotFetched(Exception):
    """A file cannot be downloaded, or the one in its place is not that of the catalog.

    by_hand: whether to get it by hand. reached: False if no server was reached.
    """

    def __init__(self, reason: str, *, by_hand: bool = True, reached: bool = True) -> None:
        super().__init__(reason)
        self.by_hand, self.reached = by_hand, reached


def _by_hand(transfers: Sequence[_Transfer]) -> str:
    """Return where each missing file comes from and belongs."""
    missing = [f"\n  {t.file.url}\n    to {t.path}" for t in transfers if not t.path.exists()]
    these = "this file" if len(missing) == 1 else f"these {len(missing)} files"
    how = f" Try again later, or download {these} in a browser, and run the same command again:"
    return how + "".join(missing)


def _without_verifying(entry: CatalogEntry, folder: Path, files: Sequence[RemoteFile]) -> str:
    if all(file.size is None and file.sha256 is None and file.md5 is None for file in files):
        return ""
    where = "" if folder == cache_folder() else f" --folder {shlex.quote(str(folder))}"
    return f"\n`grash datasets get {entry.name}{where} --no-verify` accepts a file that differs from the catalog."


def _link_or_copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


class _TransferError(Exception):
    """A transfer failed. It is tried again unless `final`."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class _NameNotResolved(_TransferError):
    """The name of the server, or of the proxy before it, cannot be found: there is probably no network."""

    def __init__(self, reason: str, *, server: str, proxy: str | None, temporary: bool) -> None:
        super().__init__(reason)
        self.server, self.proxy, self.temporary = server, proxy, temporary


def _failed_connection(error: Exception, server: str, proxy: str | None) -> _TransferError:
    cause = getattr(error, "reason", None) or error
    if isinstance(cause, socket.gaierror):
        temporary = cause.errno == socket.EAI_AGAIN
        return _NameNotResolved(cause.strerror or str(cause), server=server, proxy=proxy, temporary=temporary)
    through = "" if proxy is None else f"through the proxy {proxy}: "
    if isinstance(cause, ssl.SSLCertVerificationError):
        reason = f"the certificate is not trusted: {cause.verify_message.rstrip('.')}"
        hint = "if your network has its own authority, name the file with its certificate in SSL_CERT_FILE"
        return _TransferError(f"{through}{reason}; {hint}", final=True)
    return _TransferError(through + (str(cause) or type(error).__name__))


def _no_network(errors: Sequence[_NameNotResolved]) -> str:
    """Return why no address of a file was reached."""
    last = errors[-1]
    if last.proxy is not None:
        return f"The proxy {last.proxy} cannot be found ({last}): check HTTP_PROXY and HTTPS_PROXY."
    names = " and ".join(dict.fromkeys(error.server for error in errors))
    return f"No network was reached: {names} cannot be found ({last})."


@dataclass(frozen=True)
class _Transfer:
    file: RemoteFile
    path: Path
    open_url: Callable[..., Any]
    wait: Callable[[float], None]
    progress: Progress | None

    @property
    def part(self) -> Path:
        """The incomplete file."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def version(self) -> Path:
        """The server's mark (ETag or date) of the version that the incomplete file belongs to."""
        return self.path.with_name(f"{self.path.name}.part.version")

    def fetch(self) -> Path:
        """Return the path of the file, verified; download it unless it exists."""
        if self.path.exists():
            if problem := _problem(self.path, self.file):
                raise _NotFetched(
                    f"{self.path} is not the file of the catalog: {problem}. Delete it and run the same command again "
                    f"to download it, or put the right file there.",
                    by_hand=False,
                )
            return self.path
        reasons: list[str] = []
        unknown: list[_NameNotResolved] = []
        urls = (self.file.url, *self.file.mirrors)
        for url in urls:
            if not _is_http(url):
                raise InputError(f"{url} is not an http or https address; grash downloads from no other.")
            try:
                reason = self._attempt_repeatedly(url)
            except _NameNotResolved as error:
                reason = str(error)
                unknown.append(error)
            if reason is None:
                break
            reasons.append(f"{url} could not be downloaded ({reason}).")
            if url != urls[-1] and not unknown:
                _log.warning("%s", reasons[-1])
        else:
            if len(unknown) == len(urls):
                raise _NotFetched(_no_network(unknown), reached=False)
            raise _NotFetched(" ".join(reasons))
        with _as_output_error(self.path):
            self.part.replace(self.path)
            self.version.unlink(missing_ok=True)
        return self.path

    def _attempt_repeatedly(self, url: str) -> str | None:
        """Return why all attempts failed, or None if the incomplete file became complete and verified.

        Raises _NameNotResolved at the first attempt, or at the second if the failure may be temporary: without a
        network, others would only take time.
        """
        reason: str | None = None
        reached = False
        for attempt in range(ATTEMPTS):
            if attempt:
                _log.warning("%s: %s; trying again (%d of %d).", url, reason, attempt + 1, ATTEMPTS)
                self.wait(2.0 ** (attempt - 1))
            try:
                resumed = self._transfer(url)
            except _TransferError as error:
                if not isinstance(error, _NameNotResolved):
                    reached = True
                elif not reached and (attempt or not error.temporary):
                    raise
                reason = str(error)
                if error.final:
                    break
                continue
            reached = True
            reason = _problem(self.part, self.file)
            if reason is None:
                break
            self._delete_part()
            if not resumed:  # downloaded in one piece, so the server has another file
                break
        return reason

    def _transfer(self, url: str) -> bool:
        """Append the missing bytes to the incomplete file; return whether existing bytes were used."""
        with _as_output_error(self.part):
            self.part.parent.mkdir(parents=True, exist_ok=True)
        start, version = self._resume_point()
        headers = {"User-Agent": f"grash/{__version__}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if version:
                headers["If-Range"] = version
        file, request = self.file, urllib.request.Request(url, headers=headers)
        server = request.host
        try:
            with self.open_url(request, timeout=TIMEOUT_SECONDS) as response:
                if not _is_http(response.geturl()):
                    raise _TransferError(f"it redirects to {response.geturl()}, which is not an http or https address")
                return self._receive(response, start)
        except HTTPError as error:
            error.close()
            if error.code == 416 and start:  # no bytes beyond these: the file is complete, or it is another one
                if file.size == start or (file.size is None and (file.sha256 or file.md5)):
                    return True
                self._delete_part()
            final = 400 <= error.code < 500 and error.code not in (408, 416, 429)
            raise _TransferError(f"the server answered {error.code} {error.reason}", final=final) from error
        except (OSError, http.client.HTTPException) as error:
            proxy = request.host if request.host != server else None  # urllib replaced it
            raise _failed_connection(error, server, proxy) from error

    def _resume_point(self) -> tuple[int, str | None]:
        """Return the number of usable bytes and their version.

        Without a version or a checksum, it is unknown whether the rest fits, so the download starts from 0.
        """
        start = self.part.stat().st_size if self.part.exists() else 0
        version = self.version.read_text(encoding="latin-1").strip() if self.version.exists() else None
        known = version is not None or self.file.sha256 is not None or self.file.md5 is not None
        fits = self.file.size is None or start <= self.file.size
        return (start, version) if known and fits else (0, None)

    def _receive(self, response: Any, start: int) -> bool:
        content_range = response.headers.get("Content-Range", "")  # bytes 100-199/200
        resumed = response.status == 206 and content_range.removeprefix("bytes ").split("-")[0].strip() == str(start)
        if response.status == 206 and not resumed:
            self._delete_part()
            raise _TransferError("the server sent another part of the file")
        done = start if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        with _as_output_error(self.part):
            if version and not version.startswith("W/"):  # a weak tag does not promise equal bytes
                self.version.write_text(version, encoding="latin-1")
            else:
                self.version.unlink(missing_ok=True)
            sink = self.part.open("ab" if resumed else "wb")
        with sink:
            while block := response.read(_BLOCK):
                with _as_output_error(self.part):
                    sink.write(block)
                    sink.flush()
                done += len(block)
                if self.progress is not None:
                    self.progress(self.file.name, done, self.file.size if self.file.size is not None else total)
                if self.file.size is not None and done > self.file.size:
                    return resumed  # too long: _problem reports it
            with _as_output_error(self.part):
                os.fsync(sink.fileno())
        if total is not None and done < total:
            raise _TransferError(f"the connection ended after {done:,} of {total:,} bytes")
        return resumed

    def _delete_part(self) -> None:
        self.part.unlink(missing_ok=True)
        self.version.unlink(missing_ok=True)


def _is_http(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


def _problem(path: Path, file: RemoteFile) -> str | None:
    """Return why a file is not what the catalog describes, or None; one checksum is enough."""
    if not path.is_file():
        return "it is not a regular file"
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size:,} bytes, expected {file.size:,}"
    kind, expected = ("sha256", file.sha256) if file.sha256 is not None else ("md5", file.md5)
    if expected is None:
        return None if size else "it is empty"
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as source:
        while block := source.read(_BLOCK):
            digest.update(block)
    return None if digest.hexdigest() == expected else f"its {kind} is {digest.hexdigest()}, expected {expected}"


@contextmanager
def _as_output_error(path: Path) -> Iterator[None]:
    """Report a failed write as a problem of the disk, not of the network."""
    try:
        yield
    except OSError as error:
        then = "The downloaded part is kept: run the same command again to continue."
        raise OutputError(path, error.strerror or str(error), then=then) from error


def unpack(archive: Path, folder: Path, *, members: Mapping[str, str]) -> None:
    """Extract the regular files of a tar or zip archive; without `members`, strip a single top-level folder.

    members: path in the archive → file name; only these are extracted. Links, devices and paths outside of the
    folder are errors.
    """
    wanted = dict(members)
    damage = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, NotImplementedError)
    clash = (FileExistsError, NotADirectoryError, IsADirectoryError)  # a name may occur twice in an archive
    try:
        for name, content in _files(archive):
            inside = _safe_path(name, archive)
            if _IGNORED & set(inside.parts):
                continue
            targets = [str(inside)]
            if members:
                ends = {path: PurePosixPath(path).parts for path in wanted}
                targets = [wanted.pop(path) for path, end in ends.items() if inside.parts[-len(end) :] == end]
            for target in targets:
                path = folder / target
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as sink:  # never over another file of the archive
                    shutil.copyfileobj(content, sink, _BLOCK)
    except (*damage, OSError) as error:
        # gzip and bz2 raise OSError without a number for damaged data
        if not isinstance(error, (*damage, *clash)) and getattr(error, "errno", None) is not None:
            raise
        raise InputError(
            f"{archive} cannot be unpacked ({error}). Delete it and run the same command again."
        ) from error
    if wanted:
        raise InputError(f"{archive} does not contain {', '.join(wanted)}: it is not the expected archive.")
    unpacked = list(folder.iterdir())
    if not members and len(unpacked) == 1 and unpacked[0].is_dir():
        inner = unpacked[0].rename(folder / ".inner")
        for child in inner.iterdir():
            child.rename(folder / child.name)
        inner.rmdir()


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield (name, content) of every regular file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if info.external_attr >> 28 == 10:  # upper bits of the Unix mode: 8 file, 4 folder, 10 link
                    raise InputError(_unsafe(archive, info.filename, "a link"))
                if not info.is_dir():
                    with packed.open(info) as unzipped:
                        yield info.filename, unzipped
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                continue
            content = tar.extractfile(member) if member.isfile() else None
            if content is None:
                raise InputError(_unsafe(archive, member.name, "not a regular file"))
            with content:
                yield member.name, content


def _safe_path(name: str, archive: Path) -> PurePosixPath:
    path = PurePosixPath(name.replace("\\", "/"))
    parts = [part for part in path.parts if part != "."]
    if path.is_absolute() or ".." in parts or not parts or ":" in parts[0] or "\0" in name:
        raise InputError(_unsafe(archive, name, "a path outside of the folder"))
    return PurePosixPath(*parts)


def _unsafe(archive: Path, name: str, what: str) -> str:
    return f"{archive} contains {name!r}, {what}. Nothing was unpacked; get the archive from another source."
