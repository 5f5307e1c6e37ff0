"""Downloads, against a local server that supports ranges, cuts connections and sends wrong answers."""

import hashlib
import http.server
import io
import logging
import socket
import tarfile
import threading
import zipfile
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener, urlopen

import pytest

import grash
from grash.cli import main
from grash.data import catalog
from grash.data.catalog import ATTEMPTS, CatalogEntry, RemoteFile, download, find_entry
from grash.errors import InputError, OutputError

TRAIN = b"".join(b"a%d\tknows\tb%d\n" % (i, i % 7) for i in range(20_000))


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves server.content; server.cut_after: bytes until the connection ends, once."""

    def do_GET(self):
        server = self.server
        content = server.content.get(self.path)
        server.seen.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        if content is None:
            self.send_error(404)
            return
        start = 0
        asked = self.headers.get("Range")
        fits = self.headers.get("If-Range") in (None, server.version)
        if asked and server.ranges and fits:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        if server.version:
            self.send_header("ETag", server.version)
        self.end_headers()
        if server.cuts:
            body = body[: server.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.content, server.seen, server.cuts = {}, [], []
        server.ranges, server.version = True, '"one"'
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def entry(*files: RemoteFile, form="files", **more) -> CatalogEntry:
    return CatalogEntry("toy", "Toy", files, form, "Nobody 2000", **more)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def get(what, folder, **more):
    waits = []
    try:
        return download(what, folder, wait=waits.append, **more)
    finally:
        get.waits = waits


def tar(members, *, link=None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link is not None:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return packed.getvalue()


def packed_zip(members) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_files_are_fetched_and_verified(server, tmp_path):
    server.content = {"/train": TRAIN, "/valid": b"a\tknows\tb\n"}
    calls = []
    toy = entry(
        RemoteFile(f"{server.url}/train", "train.txt", size=len(TRAIN), sha256=sha256(TRAIN)),
        RemoteFile(f"{server.url}/valid", "valid.txt"),
    )
    folder = get(toy, tmp_path, progress=lambda *call: calls.append(call))
    assert folder == tmp_path / "toy"
    assert sorted(path.name for path in folder.iterdir()) == ["train.txt", "valid.txt"]
    assert (folder / "train.txt").read_bytes() == TRAIN
    assert calls[-1] == ("valid.txt", 10, 10)
    assert ("train.txt", len(TRAIN), len(TRAIN)) in calls


def test_a_dataset_of_one_file_is_that_file(server, tmp_path):
    server.content = {"/all": TRAIN}
    assert get(entry(RemoteFile(f"{server.url}/all", "all.tsv")), tmp_path) == tmp_path / "toy" / "all.tsv"


def test_an_existing_dataset_is_not_downloaded_again(server, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "mine.txt").write_text("mine")
    get(entry(RemoteFile(f"{server.url}/train", "train.txt")), tmp_path)
    assert server.seen == []
    assert (tmp_path / "toy" / "mine.txt").read_text() == "mine"


def test_a_cut_connection_is_resumed_where_it_broke(server, tmp_path):
    server.content, server.cuts = {"/train": TRAIN}, [100_000, 50_000]
    folder = get(entry(RemoteFile(f"{server.url}/train", "a.txt", sha256=sha256(TRAIN))), tmp_path)
    assert folder.read_bytes() == TRAIN
    ranges = [asked for _, asked, _ in server.seen]
    assert ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert get.waits == [1.0, 2.0]


def test_a_later_run_resumes_an_earlier_one(server, tmp_path):
    server.content = {"/train": TRAIN}
    part = tmp_path / "toy.download" / "a.txt.part"
    part.parent.mkdir()
    part.write_bytes(TRAIN[:777])
    got = get(entry(RemoteFile(f"{server.url}/train", "a.txt", md5=hashlib.md5(TRAIN).hexdigest())), tmp_path)
    assert got.read_bytes() == TRAIN
    assert server.seen[0][1] == "bytes=777-"
    assert not part.exists()


def test_a_part_of_another_version_is_not_used(server, tmp_path):
    server.content, server.cuts = {"/train": b"x" * 5000}, [1000] * ATTEMPTS
    toy = entry(RemoteFile(f"{server.url}/train", "a.txt"))
    server.ranges = False
    with pytest.raises(InputError, match="ended after"):
        get(toy, tmp_path)
    server.content, server.cuts, server.ranges, server.version = {"/train": TRAIN}, [], True, '"two"'
    assert get(toy, tmp_path).read_bytes() == TRAIN
    assert server.seen[-1][2] == '"one"'


def test_without_a_version_or_checksum_it_starts_from_the_beginning(server, tmp_path):
    server.content, server.cuts, server.version = {"/train": TRAIN}, [100], None
    assert get(entry(RemoteFile(f"{server.url}/train", "a.txt")), tmp_path).read_bytes() == TRAIN
    assert [asked for _, asked, _ in server.seen] == [None, None]


def test_a_complete_part_is_used(server, tmp_path):
    server.content = {"/train": TRAIN}
    part = tmp_path / "toy.download" / "a.txt.part"
    part.parent.mkdir()
    part.write_bytes(TRAIN)
    toy = entry(RemoteFile(f"{server.url}/train", "a.txt", sha256=sha256(TRAIN)))
    assert get(toy, tmp_path).read_bytes() == TRAIN


def test_a_damaged_part_is_deleted_and_downloaded_again(server, tmp_path):
    server.content = {"/train": TRAIN}
    part = tmp_path / "toy.download" / "a.txt.part"
    part.parent.mkdir()
    part.write_bytes(b"rotten")
    toy = entry(RemoteFile(f"{server.url}/train", "a.txt", size=len(TRAIN), sha256=sha256(TRAIN)))
    assert get(toy, tmp_path).read_bytes() == TRAIN
    assert [asked for _, asked, _ in server.seen] == ["bytes=6-", None]


@pytest.mark.parametrize("known", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"size": 5}, {"size": 10**9}])
def test_a_wrong_file_is_refused_and_leaves_no_dataset(server, tmp_path, known):
    server.content = {"/train": TRAIN}
    with pytest.raises(InputError, match="expected") as caught:
        get(entry(RemoteFile(f"{server.url}/train", "a.txt", **known)), tmp_path)
    assert str(tmp_path / "toy.download" / "a.txt") in str(caught.value)
    assert not (tmp_path / "toy").exists()
    assert list((tmp_path / "toy.download").iterdir()) == []
    assert len(server.seen) == 1  # the same bytes would come again


def test_a_missing_file_is_requested_only_once(server, tmp_path):
    with pytest.raises(InputError, match="404"):
        get(entry(RemoteFile(f"{server.url}/none", "a.txt")), tmp_path)
    assert len(server.seen) == 1


def test_a_mirror_is_used_if_the_first_address_fails_or_has_another_file(server, tmp_path):
    server.content = {"/wrong": b"moved", "/right": TRAIN}
    addresses = [f"{server.url}/{name}" for name in ("none", "wrong", "right", "never")]
    file = RemoteFile(addresses[0], "train.txt", sha256=sha256(TRAIN), mirrors=tuple(addresses[1:]))
    assert get(entry(file), tmp_path).read_bytes() == TRAIN
    assert [path for path, *_ in server.seen] == ["/none", "/wrong", "/right"]


def test_if_all_mirrors_fail_the_error_names_each_with_its_reason(server, tmp_path):
    server.content = {"/wrong": b"moved"}
    file = RemoteFile(f"{server.url}/none", "a.txt", md5="0" * 32, mirrors=(f"{server.url}/wrong",))
    with pytest.raises(InputError, match="/none could not be downloaded .*404.*/wrong could .*expected"):
        get(entry(file), tmp_path)


def test_a_file_that_differs_from_the_catalog_can_be_accepted(server, tmp_path):
    server.content = {"/train": TRAIN}
    toy = entry(RemoteFile(f"{server.url}/train", "train.txt", size=5, sha256="0" * 64))
    with pytest.raises(InputError, match=f"`grash datasets get toy --folder {tmp_path} --no-verify` accepts"):
        get(toy, tmp_path)
    assert get(toy, tmp_path, verify=False).read_bytes() == TRAIN


def test_without_a_network_one_error_says_so_at_once_and_which_files_to_put_where(tmp_path, caplog):
    requests = []

    def no_network(request, timeout):
        requests.append(request.full_url)
        raise URLError(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))

    files = [
        RemoteFile(f"https://example.org/{name}", name, size=5, mirrors=(f"https://mirror.org/{name}",))
        for name in ("train.txt", "valid.txt", "test.txt")
    ]
    (tmp_path / "toy.download").mkdir()
    (tmp_path / "toy.download" / "valid.txt").write_bytes(b"a r b")
    with caplog.at_level(logging.INFO), pytest.raises(InputError) as caught:
        get(entry(*files), tmp_path, open_url=no_network)
    message = str(caught.value)
    reason = "No network was reached: example.org and mirror.org cannot be found (Name or service not known)."
    assert message.startswith(f"{reason} Try again later, or download these 2 files in a browser")
    for name in ("train.txt", "test.txt"):
        assert f"  https://example.org/{name}\n    to {tmp_path / 'toy.download' / name}" in message
    assert "valid.txt" not in message and "--no-verify" not in message
    assert requests == ["https://example.org/train.txt", "https://mirror.org/train.txt"]
    assert get.waits == [] and caplog.records == []


@pytest.mark.parametrize("failures", [1, 2])
def test_a_temporary_failure_to_find_a_name_is_tried_once_more(server, tmp_path, failures):
    server.content = {"/train": TRAIN}
    fails = iter([True] * failures)

    def at_first_not(request, timeout):
        if next(fails, False):
            raise URLError(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
        return urlopen(request, timeout=timeout)

    toy = entry(RemoteFile(f"{server.url}/train", "train.txt", sha256=sha256(TRAIN)))
    if failures == 1:
        assert get(toy, tmp_path, open_url=at_first_not).read_bytes() == TRAIN
    else:
        with pytest.raises(InputError, match="No network was reached: 127.0.0.1"):
            get(toy, tmp_path, open_url=at_first_not)
    assert get.waits == [1.0]


def through_proxy(proxy):
    """Return urlopen with a proxy for all addresses."""
    handler = ProxyHandler({"http": proxy, "https": proxy})
    return build_opener(handler).open


def test_a_proxy_that_is_not_found_is_named_instead_of_the_server(tmp_path, monkeypatch):
    asked = []

    def unknown(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    urls = ("https://example.org/a.txt", "http://mirror.org/a.txt")
    toy = entry(RemoteFile(urls[0], "a.txt", mirrors=urls[1:]))
    with pytest.raises(InputError) as caught:
        get(toy, tmp_path, open_url=through_proxy("http://me:secret@proxy.corp:3128"))
    reason = "The proxy proxy.corp:3128 cannot be found (Name or service not known): check HTTP_PROXY and HTTPS_PROXY."
    assert str(caught.value).startswith(reason) and asked == ["proxy.corp"] * 2 and "secret" not in str(caught.value)


def test_a_proxy_that_refuses_connections_is_named(tmp_path):
    with pytest.raises(InputError, match="a.txt could not be downloaded .through the proxy 127.0.0.1:9: .*refused"):
        get(entry(RemoteFile("https://example.org/a.txt", "a.txt")), tmp_path, open_url=through_proxy("127.0.0.1:9"))


def test_a_name_that_is_not_found_after_the_download_began_is_tried_again(server, tmp_path):
    server.content, server.cuts = {"/train": TRAIN}, [1000]
    failures = iter([False, True, False])

    def sometimes(request, timeout):
        if next(failures):
            raise URLError(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
        return urlopen(request, timeout=timeout)

    toy = entry(RemoteFile(f"{server.url}/train", "train.txt", sha256=sha256(TRAIN)))
    assert get(toy, tmp_path, open_url=sometimes).read_bytes() == TRAIN


def test_an_unreachable_server_is_an_input_error(server, tmp_path):
    with pytest.raises(InputError, match="could not be downloaded"):
        get(entry(RemoteFile("http://127.0.0.1:9/x", "a.txt")), tmp_path)


def test_a_file_placed_by_hand_is_used(tmp_path):
    place = tmp_path / "toy.download"
    place.mkdir()
    (place / "toy.tar.gz").write_bytes(tar({"toy/train.txt": TRAIN, "toy/test.txt": b"x"}))
    toy = entry(RemoteFile("https://example.org/toy.tar.gz", "toy.tar.gz"), form="archive")
    folder = get(toy, tmp_path, open_url=None)
    assert (folder / "train.txt").read_bytes() == TRAIN
    assert (place / "toy.tar.gz").exists()


def test_a_wrong_file_placed_by_hand_is_named_and_kept(tmp_path):
    place = tmp_path / "toy.download"
    place.mkdir()
    (place / "a.txt").write_text("wrong")
    toy = entry(RemoteFile("https://example.org/a.txt", "a.txt", sha256="0" * 64))
    with pytest.raises(InputError, match="a.txt is not the file of the catalog"):
        get(toy, tmp_path, open_url=None)
    assert (place / "a.txt").read_text() == "wrong"


def test_only_the_wanted_members_are_unpacked_under_their_new_names(server, tmp_path):
    server.content = {"/t": packed_zip({"x/train": TRAIN, "x/README": b"r", "__MACOSX/x/._train": b"m"})}
    toy = entry(RemoteFile(f"{server.url}/t", "t.zip"), form="archive", members={"train": "train.txt"})
    assert get(toy, tmp_path) == tmp_path / "toy" / "train.txt"


def test_an_archive_without_the_wanted_member_is_refused(server, tmp_path):
    server.content = {"/t": tar({"x/other": b"o"})}
    toy = entry(RemoteFile(f"{server.url}/t", "t.tar.gz"), form="archive", members={"train": "train.txt"})
    with pytest.raises(InputError, match="does not contain train"):
        get(toy, tmp_path)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize("name", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "..\\evil.txt", "c:/evil"])
@pytest.mark.parametrize("pack", [tar, packed_zip])
def test_an_archive_cannot_write_outside(server, tmp_path, name, pack):
    server.content = {"/t": pack({"good.txt": b"g", name: b"evil"})}
    inside = tmp_path / "inside"
    with pytest.raises(InputError, match="a path outside of the folder"):
        get(entry(RemoteFile(f"{server.url}/t", "t.bin"), form="archive"), inside)
    assert sorted(path.name for path in inside.rglob("*")) == ["t.bin", "toy.download"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inside"]


def test_a_link_in_an_archive_is_refused(server, tmp_path):
    server.content = {"/t": tar({"good.txt": b"g"}, link="passwords")}
    with pytest.raises(InputError, match="not a regular file"):
        get(entry(RemoteFile(f"{server.url}/t", "t.tar.gz"), form="archive"), tmp_path)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        b"",
        tar({"a": TRAIN})[:-200],
        packed_zip({"a": TRAIN})[:-30],
        tar({"a": b"1", "./a": b"2"}),
    ],
)
def test_a_broken_archive_is_an_input_error(tmp_path, content):
    place = tmp_path / "toy.download"
    place.mkdir()
    (place / "t.bin").write_bytes(content)
    with pytest.raises(InputError, match="Delete it and run"):
        get(entry(RemoteFile("https://example.org/t", "t.bin"), form="archive"), tmp_path, open_url=None)
    assert not (tmp_path / "toy").exists()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/x", "/etc/passwd"])
def test_other_addresses_than_http_are_refused(tmp_path, url):
    with pytest.raises(InputError, match="not an http or https"):
        get(entry(RemoteFile(url, "a.txt")), tmp_path)


def test_a_folder_that_cannot_be_written_is_an_output_error(server, tmp_path):
    server.content = {"/train": TRAIN}
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="could not be written"):
        get(entry(RemoteFile(f"{server.url}/train", "a.txt")), tmp_path / "file")


def test_a_dataset_that_cannot_be_downloaded_has_instructions(tmp_path):
    with pytest.raises(InputError, match="Install the package ogb"):
        get(find_entry("ogbl-wikikg2"), tmp_path)


@pytest.fixture
def public(server, tmp_path, monkeypatch):
    """A public dataset `tiny-9` on the local server, and an empty cache folder."""
    files = []
    for split, content in (("train", TRAIN), ("valid", b"a1\tb2\tknows\n"), ("test", b"a3\tb4\tknows\n")):
        if split == "train":
            content = b"".join(b"\t".join([h, t, r]) + b"\n" for h, r, t in map(bytes.split, content.splitlines()))
        server.content[f"/{split}.txt"] = content
        digest = hashlib.sha256(content).hexdigest()
        files.append(RemoteFile(f"{server.url}/{split}.txt", f"{split}.txt", len(content), digest))
    entry = CatalogEntry("tiny-9", "Tiny", tuple(files), "files", "nobody", columns="head,tail,relation")
    monkeypatch.setitem(catalog.CATALOG, "tiny-9", entry)
    monkeypatch.setenv("GRASH_DATA", str(tmp_path / "cache"))
    return server


@pytest.mark.parametrize("name", ["tiny-9", "Tiny_9", "TINY-9"])
def test_a_public_dataset_is_downloaded_on_first_use_by_its_name_in_any_case(public, name):
    graph = grash.load_dataset(name)
    assert (len(graph.train), len(graph.valid), len(graph.test)) == (20_000, 1, 1) and graph.name == "tiny-9"
    assert list(graph.relations) == ["knows"], "the catalog knows the order of the columns"
    requests = len(public.seen)
    assert grash.load_dataset(name).fingerprint == graph.fingerprint and len(public.seen) == requests == 3


def test_a_folder_of_the_name_takes_precedence(public, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-9").mkdir()
    (tmp_path / "tiny-9" / "train.txt").write_text("x\tr\ty\ny\tr\tz\n")
    assert len(grash.load_dataset("tiny-9", n_valid=0, n_test=0).train) == 2 and public.seen == []


def test_the_message_about_a_failed_download_names_every_file_and_its_place(public, tmp_path):
    public.content.clear()
    with pytest.raises(InputError, match="train.txt could not be downloaded") as caught:
        grash.load_dataset("tiny-9")
    for split in ("train", "valid", "test"):
        assert f"{split}.txt\n    to {tmp_path / 'cache' / 'tiny-9.download' / split}.txt\n" in str(caught.value)
    assert "`grash datasets get tiny-9 --no-verify`" in str(caught.value)


def test_the_command_line_takes_the_name(public, capsys):
    assert main(["describe", "Tiny-9"]) == 0
    assert capsys.readouterr().out.startswith("tiny-9: 20,007 entities, 1 relation\n")


def test_the_cache_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("GRASH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert catalog.cache_folder() == tmp_path / "grash" / "datasets"
    monkeypatch.setattr("sys.platform", "darwin")
    assert catalog.cache_folder().parts[-4:] == ("Library", "Caches", "grash", "datasets")


@pytest.mark.parametrize(("given", "meant"), [("wrold", "world"), ("fb15k237", "fb15k-237"), ("wn18r", "wn18rr")])
def test_a_misspelled_name_suggests_others(given, meant):
    with pytest.raises(InputError, match=f"no dataset of that name. Did you mean .*'{meant}'"):
        grash.load_dataset(given)
    assert len(grash.load_dataset("World").train) == 7722
