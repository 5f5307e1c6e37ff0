"""Downloads from the catalog's own addresses: host names, TLS, redirects and second addresses, on a local HTTPS server.

Every host of the catalog is led to this machine, where a server has a certificate for all of them. The files of three
datasets come with PyKEEN, so that their checksums are those of the catalog.
"""

from __future__ import annotations

import datetime
import http.server
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import grash as library
from data.test_catalog_download import TRAIN, Handler, get, sha256
from grash.data.catalog import CATALOG, CatalogEntry, RemoteFile, find_entry
from grash.errors import InputError
from small_graph import grash

pytest.importorskip("cryptography", reason="cryptography makes the certificates")
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

CDN, STRANGER = "cdn.example.org", "stranger.example.org"  # the stranger is not in the certificate
DOWNLOADED = [entry for entry in CATALOG.values() if entry.files]
HOSTS = {urlsplit(url).hostname for entry in DOWNLOADED for file in entry.files for url in (file.url, *file.mirrors)}
PYKEEN = Path(str(find_spec("pykeen").origin)).parent / "datasets"  # type: ignore[union-attr]


class SecureHandler(Handler):
    """Serves server.content by whole address; server.moved: address → another one."""

    def do_GET(self) -> None:
        self.path = f"https://{self.headers['Host']}{self.path}"
        if (target := self.server.moved.get(self.path)) is None:
            super().do_GET()
            return
        self.server.seen.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        self.send_response(302)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()


def certificate(name: str, key: Any, issuer: str, issuer_key: Any, extensions: list[Any]) -> bytes:
    """Return a certificate of today as PEM."""
    today = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]),
        subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=today - datetime.timedelta(days=1),
        not_valid_after=today + datetime.timedelta(days=1),
    )
    keys = [
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
    ]
    for extension in (*keys, *extensions):
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Files: the certificate of an authority, and the server's key with the certificate that the authority signed."""
    folder = tmp_path_factory.mktemp("certificates")
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    signs = x509.KeyUsage(*(i in (0, 5) for i in range(7)), encipher_only=False, decipher_only=False)
    rights = [x509.BasicConstraints(ca=True, path_length=None), signs]
    (folder / "authority.pem").write_bytes(certificate("grash tests", authority, "grash tests", authority, rights))
    names = x509.SubjectAlternativeName([x509.DNSName(str(host)) for host in sorted({*HOSTS, CDN})])
    key = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    signed = certificate("server", server, "grash tests", authority, [names])
    (folder / "server.pem").write_bytes(key + signed)
    return folder / "authority.pem", folder / "server.pem"


@pytest.fixture
def internet(certificates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An HTTPS server on this machine that has the names of all hosts of the catalog."""
    authority, own = certificates
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SecureHandler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.content, server.seen, server.cuts, server.moved = {}, [], [], {}
        server.ranges, server.version = True, '"one"'
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", server.server_address)

        def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
            assert host in {*HOSTS, CDN, STRANGER} and port == 443
            return [address]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        monkeypatch.setenv("NO_PROXY", "*")
        urllib.request.install_opener(None)  # the next one has these settings
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
    urllib.request.install_opener(None)


def published(entry: CatalogEntry) -> dict[str, bytes]:
    """Return the files of a dataset that comes with PyKEEN, by their addresses."""
    return {f.url: PYKEEN.joinpath(*urlsplit(f.url).path.split("/")[-2:]).read_bytes() for f in entry.files}


@pytest.mark.parametrize("name", ["nations", "kinship", "umls"])
def test_a_public_dataset_comes_from_its_addresses_with_its_checksums_and_counts(internet, tmp_path, monkeypatch, name):
    entry = find_entry(name)
    internet.content = published(entry)
    monkeypatch.setenv("GRASH_DATA", str(tmp_path))
    ran = grash("datasets", "get", name)
    assert ran.code == 0, ran.err
    assert [url for url, *_ in internet.seen] == [file.url for file in entry.files]
    graph = library.load_dataset(name)
    assert (len(graph.train), len(graph.valid), len(graph.test)) == (entry.train, entry.valid, entry.test)
    assert (graph.n_entities, graph.n_relations) == (entry.entities, entry.relations)
    assert len(internet.seen) == len(entry.files), "the second use needs no network"


@pytest.mark.parametrize("entry", DOWNLOADED, ids=lambda entry: entry.name)
def test_every_address_of_the_catalog_is_asked_in_its_turn(internet, tmp_path, entry):
    addresses = [(file.url, *file.mirrors) for file in entry.files]
    internet.content = {urls[-1]: TRAIN for urls in addresses}
    get(replace(entry, form="files"), tmp_path, verify=False)
    assert [url for url, *_ in internet.seen] == [url for urls in addresses for url in urls]


def test_a_file_that_differs_is_taken_from_the_second_address_or_refused(internet, tmp_path):
    entry = find_entry("nations")
    right = published(entry)
    train = entry.files[0]
    internet.content = {**right, train.url: right[train.url].replace(b"china", b"chinu", 1)}
    refused = grash("datasets", "get", "nations", "--folder", tmp_path)
    assert refused.code == 2 and f"its sha256 is {sha256(internet.content[train.url])}, expected" in refused.err
    assert not (tmp_path / "nations").exists() and list((tmp_path / "nations.download").iterdir()) == []
    internet.content[train.mirrors[0]] = right[train.url]
    assert grash("datasets", "get", "nations", "--folder", tmp_path).code == 0
    assert (tmp_path / "nations" / "train.txt").read_bytes() == right[train.url]


def test_a_cut_download_continues_behind_a_redirect_to_another_host(internet, tmp_path):
    url, there = "https://zenodo.org/record/1/files/a.txt", f"https://{CDN}/a.txt?signature=x%2By&part=1"
    internet.moved, internet.content, internet.cuts = {url: there}, {there: TRAIN}, [100_000]
    entry = CatalogEntry("toy", "Toy", (RemoteFile(url, "a.txt", len(TRAIN), sha256(TRAIN)),), "files", "Nobody 2000")
    assert get(entry, tmp_path).read_bytes() == TRAIN
    rest = ("bytes=100000-", '"one"')
    assert internet.seen == [(url, None, None), (there, None, None), (url, *rest), (there, *rest)]


def test_a_server_with_the_certificate_of_others_is_not_trusted(internet, tmp_path):
    entry = CatalogEntry("toy", "Toy", (RemoteFile(f"https://{STRANGER}/a.txt", "a.txt"),), "files", "Nobody 2000")
    with pytest.raises(InputError, match=f"is not trusted: .* not valid for '{STRANGER}'; if your"):
        get(entry, tmp_path)
    assert internet.seen == [] and get.waits == [], "another attempt would end in the same way"


def test_a_certificate_of_an_unknown_authority_is_not_trusted(internet, tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE")
    refused = grash("datasets", "get", "nations", "--folder", tmp_path)
    assert refused.code == 2 and "unable to get local issuer certificate" in refused.err
    assert "SSL_CERT_FILE" in refused.err and internet.seen == []
