"""The REST service of a real server: answers as in Python, and one sentence with a code for every mistake."""

from __future__ import annotations

import base64
import contextlib
import csv
import gc
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import grash
from grash.api.model import Prediction, Query, load_model
from grash.errors import InputError
from grash.models.store import replace_calibration
from grash.serve import guard, server
from grash.serve.batching import Conditions, Question, answer_batch
from grash.serve.server import ModelServer
from grash.serve.service import Service
from serve.conftest import HOSTILE, Client, places, serving
from small_graph import grash as run
from small_graph import model_of, rings


def test_answers_are_those_of_python(client: Client, model_path: Path) -> None:
    model = load_model(model_path, device="cpu")
    for like_known in (True, False):
        for asked in ({"head": "Lima", "relation": "near"}, {"relation": "near", "tail": "Oslo"}):
            reply = client.get("/api/ask", **asked, k=4, like_known=like_known)
            wanted = model.predict(**asked, k=4, like_known=like_known)
            assert [(a["name"], a["score"], a["known"]) for a in reply.json["answers"]] == [
                (a.name, a.score, a.known) for a in wanted
            ]
            assert [a["rank"] for a in reply.json["answers"]] == list(range(1, len(wanted) + 1))
    relations = client.get("/api/ask", head="Lima", tail="Peru").json
    assert relations["asked"] == "relation" and len(relations["answers"]) == 3


def test_like_known_is_the_default_and_types_filter(client: Client) -> None:
    names = [a["name"] for a in client.get("/api/ask", head="Oslo", relation="located_in").json["answers"]]
    assert set(names) <= {"Peru", "Italy", "United Kingdom", "Norway", HOSTILE}
    of_type = client.get("/api/ask", head="Oslo", relation="located_in", like_known=False, answer_type="City")
    assert len(of_type.json["answers"]) == 8
    assert "City" in client.get("/api/model").json["types"]


def test_a_batch_has_the_answers_of_its_questions(client: Client) -> None:
    questions = [
        {"head": "Lima", "relation": "near"},
        {"relation": "near", "tail": "Lima"},
        {"head": "Lima", "tail": "Peru"},
    ]
    reply = client.post("/api/ask", {"questions": questions, "k": 3, "like_known": False})
    single = [client.get("/api/ask", **q, k=3, like_known=False).json for q in questions]
    assert reply.json["questions"] == single
    rows = list(
        csv.DictReader(io.StringIO(client.post("/api/ask?format=csv", {"questions": questions, "k": 3}).body.decode()))
    )
    assert len(rows) == 9 and rows[0]["question"] == "1" and rows[0]["tail"] == "?"


def test_a_name_is_no_formula_in_a_spreadsheet(client: Client) -> None:
    reply = client.get("/api/ask", relation="located_in", tail="Italy", k=8, format="csv")
    cells = [row["answer"] for row in csv.DictReader(io.StringIO(reply.body.decode()))]
    assert "'=2+2" in cells and "=2+2" not in cells


@pytest.mark.parametrize(
    ("asked", "status", "code", "message"),
    [
        ({"head": "Lima"}, 400, "bad_question", "only the head is given"),
        ({}, 400, "bad_question", "asks for the third: nothing is given."),
        ({"head": "Lima", "relation": "near", "tail": "Rome"}, 400, "bad_question", "all three are given"),
        ({"head": "Lima", "relation": "near", "k": 0}, 400, "bad_question", "k=0 is not possible"),
        ({"head": "Lima", "relation": "near", "k": 10**30}, 400, "bad_question", "from 1 to 1,000"),
        ({"head": "Lima", "relation": "near", "k": "x"}, 400, "bad_request", "k must be a whole number, not 'x'."),
        ({"head": "Lima", "relation": "near", "new_only": 7}, 400, "bad_request", "must be true or false, not '7'."),
        ({"head": "Limma", "relation": "near"}, 404, "unknown_name", "Did you mean 'Lima'?"),
        ({"head": "Lima", "relation": "nera"}, 404, "unknown_name", "no relation named 'nera'. Did you mean 'near'?"),
        ({"head": "Lima", "relation": "xyz"}, 404, "unknown_name", "no relation named 'xyz'. There are: "),
        ({"head": "../../etc/passwd", "relation": "near"}, 404, "unknown_name", "no entity named"),
        ({"head": "Lima", "relation": "near", "answer_type": "Rome"}, 400, "bad_question", "No entity has the type"),
        ({"head": "Lima", "tail": "Rome", "answer_type": "City"}, 400, "bad_question", "question for a relation"),
        ({"head": "x" * 5000, "relation": "near"}, 400, "bad_request", "at most 4096 characters"),
        ({"head": "Lima", "relation": "near", "like_know": "0"}, 400, "bad_request", "or field 'like_know'"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_with_a_code(client: Client, asked: dict, status: int, code: str, message: str) -> None:
    reply = client.get("/api/ask", **asked)
    assert (reply.status, reply.json["code"]) == (status, code)
    assert message in reply.json["message"]


@pytest.mark.parametrize(
    ("path", "good", "wrong"),
    [
        ("/api/search", {"q": "Lima"}, "n"),
        ("/api/neighbors", {"entity": "Lima"}, "kk"),
        ("/api/explain", {"head": "Oslo", "relation": "near", "tail": "Lima"}, "top"),
        ("/api/facts", {"entity": "Lima"}, "limit"),
        ("/api/map", {}, "method"),
        ("/api/model", {}, "k"),
    ],
)
def test_a_parameter_that_does_not_exist_is_refused(client: Client, path: str, good: dict, wrong: str) -> None:
    assert client.get(path, **good).status == 200
    reply = client.get(path, **good, **{wrong: 1})
    assert (reply.status, reply.json["code"]) == (400, "bad_request")
    assert reply.json["message"] == f"There is no parameter or field {wrong!r}: /docs lists them."


@pytest.mark.parametrize("wrong", ["k", "batch", "new_only"])
def test_conditions_of_a_batch_in_its_address_are_refused(client: Client, wrong: str) -> None:
    batch = {"questions": [{"head": "Lima", "relation": "near"}]}
    assert client.post("/api/ask?format=csv", batch).status == 200
    reply = client.post(f"/api/ask?format=csv&{wrong}=1", batch)
    assert reply.status == 400 and f"no parameter or field '{wrong}'" in reply.json["message"]


def test_mistakes_of_a_batch_name_the_question(client: Client) -> None:
    good = {"head": "Lima", "relation": "near"}
    reply = client.post("/api/ask", {"questions": [good, {"head": "Limma", "relation": "near"}]})
    assert reply.status == 404 and reply.json["question"] == 2 and "Lima" in reply.json["suggestions"]
    assert client.post("/api/ask", {"questions": []}).json["code"] == "batch_size"
    assert client.post("/api/ask", {"questions": [good] * 1001}).status == 413
    assert client.post("/api/ask", b"{").json == {"code": "bad_request", "message": "The body is not JSON: see /docs."}
    assert client.post("/api/ask", {"questions": [{**good, "path": "/etc"}]}).status == 400
    assert client.post("/api/ask", b'{"questions": [{"head": "\\ud800", "relation": "near"}]}').status == 400


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"questions": []}', "application/x-www-form-urlencoded", "with the header 'Content-Type: application/json'"),
        (b"", "text/plain", "with the header 'Content-Type: application/json'"),
        (b"[]", "application/json", 'must be a JSON object, e.g. {"questions": ['),
        (b'{"questions": [], "k": 1.5}', "application/json", "k must be a whole number, not '1.5'."),
    ],
)
def test_a_body_of_another_kind_is_a_sentence(client: Client, body: bytes, kind: str, message: str) -> None:
    reply = client.post("/api/ask", body, {"Content-Type": kind})
    assert (reply.status, reply.json["code"]) == (400, "bad_request") and message in reply.json["message"]


def test_a_batch_with_too_many_answers_is_refused(client: Client) -> None:
    questions = [{"head": "Lima", "relation": "near"}] * 101
    reply = client.post("/api/ask", {"questions": questions, "k": 1000})
    assert (reply.status, reply.json["code"]) == (413, "batch_size")
    assert "asks for 101,000 answers" in reply.json["message"]
    assert client.post("/api/ask", {"questions": questions[1:], "k": 1000}).status == 200


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_long_reply_is_written_off_the_event_loop(
    client: Client, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    threads, answers = set(), Service.answers

    def noted(*given: Any) -> dict[str, Any]:
        threads.add(threading.current_thread().name.split("_")[0])
        return answers(*given)

    monkeypatch.setattr(Service, "answers", noted)
    asked = {"questions": [{"head": "Lima", "relation": "near"}] * 200, "k": 10, "like_known": False}
    assert client.post(f"/api/ask?format={format}", asked).status == 200
    assert threads == {"others"}


def test_a_question_for_many_answers_does_not_slow_down_the_others() -> None:
    asked: list[tuple[int, int]] = []

    class Recorded:
        def predict_many(self, queries: list[Query], k: int, **conditions: Any) -> list[list[Prediction]]:
            asked.append((len(queries), k))
            return [[] for _ in queries]

    query = Query(0, 0, None)
    answer_batch(Recorded(), [Question(query, k, Conditions()) for k in (10, 1000, 9, 16)])  # type: ignore[arg-type]
    assert sorted(asked) == [(1, 1000), (3, 16)]


def test_other_endpoints_answer_and_refuse(client: Client) -> None:
    assert client.get("/api/search", q="qqqq").json == {"results": []}
    assert client.get("/api/search", q="united").json["results"][0]["name"] == "United Kingdom"
    assert client.get("/api/search", q="locatde", kind="relation").json["results"][0]["name"] == "located_in"
    facts = client.get("/api/facts", entity="Lima", k=50).json
    assert {"head": "Lima", "relation": "near", "tail": "Rome", "split": "valid"} in facts["facts"]
    assert facts["map"]["entities"][0] == "Lima" and len(facts["map"]["triples"]) >= 3
    assert len(client.get("/api/neighbors", entity="Lima", k=3).json["neighbors"]) == 3
    reasons = client.get("/api/explain", head="Oslo", relation="located_in", tail="Norway", k=3).json
    assert reasons["known"] and len(reasons["reasons"]) == 3
    for path in ("/api/facts", "/api/neighbors"):
        assert client.get(path, entity="Limma").json["suggestions"] == ["Lima"]
        assert client.get(path, entity="Lima", k=0).status == 400
    assert client.get("/nothing").json["code"] == "not_found"
    assert client.send("DELETE", "/api/ask").json["code"] == "method_not_allowed"


def test_the_page_counts_triples_of_train_where_the_server_does(client: Client) -> None:
    page = client.get("/").body.decode()  # "known fact" is about valid and test, too
    assert "triples in train, with" in page and "known triple" not in page


def test_paths_of_the_file_system_are_out_of_reach(client: Client) -> None:
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page.html",
        "/static/..%2f..%2fetc/passwd",
    ):
        reply = client.send("GET", path)
        assert reply.status == 404 and b"root:" not in reply.body


def exchange(port: int, content: bytes) -> bytes:
    """Send bytes and return what comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        with contextlib.suppress(ConnectionError):  # refused before all of it was sent
            connection.sendall(content)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    reply = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            reply += part
    return reply


def test_a_body_over_the_limit_is_refused(client: Client) -> None:
    head = "POST /api/ask HTTP/1.1\r\nHost: localhost\r\n"
    said = f"{head}Content-Length: {1 << 50}\r\n\r\n".encode()
    size = guard.MAX_BODY + 1
    hidden = f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + b"x" * size + b"\r\n0\r\n\r\n"
    for content in (said, hidden):
        reply = exchange(client.port, content)
        assert b" 413 " in reply.split(b"\r\n")[0] and b"body_too_large" in reply


def test_slow_clients_are_cut_off_and_disturb_nobody(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.0)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.4)
    heads = b"GET /api/mo", b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    slow = []
    for i in range(20):
        slow.append(socket.create_connection(("127.0.0.1", client.port), 20))
        slow[i].sendall(heads[i % 2])
    assert client.get("/api/ask", head="Lima", relation="near").status == 200
    for i, connection in enumerate(slow):
        reply = read_all(connection)
        assert (b" 408 " in reply and b"too_slow" in reply) if i % 2 else reply == b""
        connection.close()


def test_other_hosts_and_origins_get_nothing(client: Client) -> None:
    assert client.get("/api/model", {"Host": "evil.example"}).json["code"] == "wrong_host"
    assert client.get("/api/model", {"Host": f"localhost:{client.port}"}).status == 200
    assert client.get("/api/model", {"Host": "[::1]"}).status == 200
    reply = client.get("/api/model", {"Origin": "http://evil.example"})
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert client.send("OPTIONS", "/api/ask", None, {"Origin": "http://evil.example"}).status == 405


def test_the_page_allows_its_own_scripts_only(client: Client) -> None:
    for path in ("/", "/docs"):
        reply = client.get(path)
        policy = reply.headers["content-security-policy"]
        assert reply.status == 200 and "default-src 'none'" in policy and "unsafe" not in policy
        assert (
            b"http://" not in reply.body.replace(b"http://www.w3.org/2000/svg", b"") and b"https://" not in reply.body
        )
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert b"/api/explain" in reply.body
    schema = client.get("/openapi.json").json
    assert set(schema["paths"]["/api/ask"]) == {"get", "post"}


def test_every_parameter_is_described(client: Client) -> None:
    schema = client.get("/openapi.json").json
    operations = {f"{m} {path}": o for path, methods in schema["paths"].items() for m, o in methods.items()}
    parts = {f"{name} {p['name']}": p for name, o in operations.items() for p in o.get("parameters", [])}
    fields = schema["components"]["schemas"]
    parts |= {
        f"{of} {name}": f for of in ("AskedBatch", "AskedQuestion") for name, f in fields[of]["properties"].items()
    }
    assert len(parts) > 20 and [name for name, part in parts.items() if not part.get("description")] == []
    assert operations["get /metrics"]["summary"] == "Numbers of requests and their times, for Prometheus"
    asked = {name for name in parts if name.startswith("get /api/ask ")}
    assert {f"get /api/ask {name}" for name in ("head", "k", "answer_type", "format")} < asked


def test_a_token_is_needed_where_one_is_set(model_path: Path) -> None:
    with serving(Service(places()), token="s3cret") as secret:
        assert secret.get("/api/model").json["code"] == "token_needed"
        for sent, what in (
            ({}, "This server needs its token: "),
            ({"Authorization": "Bearer no"}, "The token is wrong: "),
        ):
            assert secret.get("/api/model", sent).json["message"].startswith(what)
        assert secret.get("/metrics").status == 401
        assert secret.get("/api/model", {"Authorization": "Bearer wrong"}).status == 401
        assert secret.get("/api/model", {"Authorization": "Bearer s3cret"}).status == 200
        assert secret.get("/health").status == 200 and secret.get("/").status == 200
    for token in ("\n", "", "s3cret "):  # no header has a space at its end
        ran = run("serve", model_path, "--token", token)
        assert ran.code == 2 and "--token is not possible" in ran.err


def test_the_map_has_every_entity_once_and_is_made_once(client: Client, model_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(lambda _: client.get("/api/map").json, range(3))
    assert all(found == first for found in others)
    entities = load_model(model_path, device="cpu").dataset.entities
    assert entities is not None and first["names"][:2] == [entities.name(0), entities.name(1)]
    assert len(first["names"]) == 15 and len(base64.b64decode(first["places"])) == 15 * 4
    assert [color["title"] for color in first["colors"]] == ["type", "relation"]


def test_concurrent_questions_share_ranking_calls(client: Client) -> None:
    def value(name: str) -> float:
        lines = client.get("/metrics").body.decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

    before = value("grash_questions_total"), value("grash_batches_total")
    asked = [{"head": name, "relation": "near", "k": 1 + i % 5} for i, name in enumerate(["Lima", "Rome", "Oslo"] * 40)]
    with ThreadPoolExecutor(24) as pool:
        replies = list(pool.map(lambda q: client.get("/api/ask", **q).json, asked))
    for question, reply in zip(asked, replies):
        assert reply["head"] == question["head"] and len(reply["answers"]) == question["k"]
    n_questions, n_batches = value("grash_questions_total") - before[0], value("grash_batches_total") - before[1]
    assert n_questions == 120 and n_batches < 120


def test_a_replaced_folder_is_reported_and_the_old_model_answers(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_path, folder)
    with serving(Service.load(folder, "cpu")) as served:
        wait_for(lambda: served.get("/health").json.get("verified"))
        before = served.get("/api/ask", head="Lima", relation="near").json
        model_of_two = places()
        model_of_two.kge.entity.mul_(-1)
        model_of_two.save(folder, overwrite=True)
        health = served.get("/health").json
        assert health["code"] == "model_replaced" and "until grash serve is restarted" in health["message"]
        assert served.get("/api/ask", head="Lima", relation="near").json == before
        shutil.rmtree(folder)
        assert served.get("/health").json["code"] == "model_replaced"
        assert served.get("/api/ask", head="Lima", relation="near").json == before


def test_a_model_that_is_calibrated_while_it_is_served_is_reported(model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_path, folder)
    service = Service.load(folder, "cpu")
    assert service.replaced is None
    replace_calibration(folder, {})
    assert service.replaced is not None


def test_a_type_is_refused_by_a_graph_without_types() -> None:
    with serving(Service(model_of(rings()))) as served:
        reply = served.get("/api/ask", head="person 1", relation="next", answer_type="person 2")
        assert (reply.status, reply.json["code"]) == (400, "bad_question")
        assert "This graph has no types" in reply.json["message"] and "--type-relation" not in reply.json["message"]


def test_damage_is_found_after_the_start(model_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_path, folder)
    tables = folder / "embeddings.safetensors"
    content = bytearray(tables.read_bytes())
    content[-5] ^= 1
    tables.write_bytes(content)
    with serving(Service.load(folder, "cpu")) as served:
        wait_for(lambda: served.get("/health").status == 503)
        assert served.get("/health").json["code"] == "model_damaged"
    assert "damaged" in caplog.text or "checksum" in caplog.text


def wait_for(condition, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_port_in_use_is_a_sentence(client: Client, model_path: Path) -> None:
    ran = run("serve", model_path, "--port", client.port)
    assert ran.code == 2 and f"Port {client.port} cannot be used: address already in use" in ran.err
    assert "--port 70000 is not possible" in run("serve", model_path, "--port", 70000).err
    assert run("serve", "nothing").code == 2


def test_a_graph_without_names_is_served_by_ids() -> None:
    import numpy as np

    import grash
    from small_graph import model_of

    triples = np.array([[0, 0, 1], [1, 0, 2], [2, 1, 0]])
    model = model_of(grash.from_triples(triples, valid=triples[:0], test=triples[:0], ids=True))
    with serving(Service(model)) as served:
        assert served.get("/api/search", q="2").json == {"results": [{"name": "2", "id": 2}]}
        assert served.get("/api/ask", head="0", relation="0").status == 200
        assert served.get("/api/ask", head="7", relation="0").json["code"] == "unknown_name"


def test_short_forms_of_iris_are_understood() -> None:
    base = "http://example.org/"
    pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "x/a")]
    graph = grash.from_triples([(base + h, "http://dbpedia.org/ontology/near", base + t) for h, t in pairs])
    with serving(Service(model_of(graph))) as client:
        for head in (f"{base}b", f"<{base}b>", "b"):
            for relation in ("dbo:near", "near"):
                reply = client.get("/api/ask", head=head, relation=relation)
                assert reply.status == 200 and reply.json["head"] == f"{base}b"
        asked = {"questions": [{"head": "b", "relation": "near"}, {"head": "a", "relation": "near"}]}
        reply = client.post("/api/ask", asked)
        assert reply.status == 404 and reply.json["question"] == 2 and "2 names end in it" in reply.json["message"]
        assert reply.json["suggestions"] == [f"{base}a", f"{base}x/a"]
        assert client.get("/api/explain", head="b", relation="near", tail="c").json["head"] == f"{base}b"
        for path in ("/api/facts", "/api/neighbors"):
            assert client.get(path, entity="b").json["entity"] == f"{base}b"


def test_stopping_leaves_no_thread_behind(model_path: Path) -> None:
    server_of = ModelServer(lambda: Service.load(model_path, "cpu"), 0)
    thread = threading.Thread(target=server_of.run, daemon=True)
    thread.start()
    wait_for(lambda: Client(server_of.port).get("/health").status == 200)
    server_of.stop()
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(OSError):
        Client(server_of.port).get("/health")


def test_the_page_is_there_and_requests_wait_while_the_model_is_loaded(model_path: Path) -> None:
    ready = threading.Event()

    def load() -> Service:
        assert ready.wait(20)
        return Service.load(model_path, "cpu")

    server_of = ModelServer(load, 0, token="s3cret")
    served, allowed = Client(server_of.port), {"Authorization": "Bearer s3cret"}
    thread = threading.Thread(target=server_of.run, daemon=True)
    thread.start()
    page, health = served.get("/"), served.get("/health")
    assert (
        page.status == 200
        and b"Loading the model" in page.body
        and "script-src" in page.headers["content-security-policy"]
    )
    assert (health.status, health.json["code"], health.headers["retry-after"]) == (503, "loading", "1")
    assert served.get("/api/ask", head="Lima", relation="near").status == 401  # before it waits
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.get, "/api/ask", allowed, head="Lima", relation="near")
        time.sleep(0.1)
        assert not waiting.done()
        ready.set()
        assert waiting.result(20).status == 200
    assert served.get("/").body == page.body and served.get("/health").status == 200
    server_of.stop()
    thread.join(20)


def test_what_is_loaded_is_no_work_for_garbage_collections_until_the_server_stops(model_path: Path) -> None:
    server = ModelServer(lambda: Service.load(model_path, "cpu"), 0)
    thread = threading.Thread(target=server.run, daemon=True)
    gc.unfreeze()
    thread.start()
    deadline = time.monotonic() + 60
    while gc.get_freeze_count() < 10_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gc.get_freeze_count() >= 10_000
    server.stop()
    thread.join(60)
    assert not thread.is_alive() and gc.get_freeze_count() == 0


def test_a_model_that_cannot_be_loaded_stops_the_server() -> None:
    def load() -> Service:
        raise InputError("This model is broken.")

    with pytest.raises(InputError, match="This model is broken"):
        ModelServer(load, 0).run()


def test_requests_that_wait_for_a_model_are_told_when_it_cannot_be_loaded() -> None:
    failing = threading.Event()

    def load() -> Service:
        failing.wait(20)
        raise InputError("This model is broken.")

    server = ModelServer(load, 0)
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(server.run)
        waiting = pool.submit(Client(server.port).get, "/api/model")
        time.sleep(0.2)
        assert not waiting.done()
        failing.set()
        reply = waiting.result(20)
        assert (reply.status, reply.json["code"]) == (503, "not_loaded")
        assert isinstance(ended.exception(20), InputError)


@pytest.mark.parametrize("stopped", [True, False])
def test_indexes_that_cannot_be_built_are_logged_unless_the_server_stops(
    stopped: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(service: Service) -> None:
        if stopped:
            server.stop()
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(Service, "warm_up", fail)
    server = ModelServer(lambda: Service(places()), 0)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(server.run)
        end = time.monotonic() + 20
        while not stopped and not caplog.records and time.monotonic() < end:
            time.sleep(0.01)
        server.stop()
        ended.result(20)
    assert [r.getMessage() for r in caplog.records if r.name == "grash.serve.server"] == (
        [] if stopped else ["The model is served, but its indexes could not be built."]
    )


@pytest.mark.slow
def test_the_server_listens_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys, grash.serve.server; print([m for m in ('torch', 'numpy', 'numba', 'fastapi') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_every_reply_is_json_of_ascii(client: Client) -> None:
    reply = client.get("/api/ask", relation="located_in", tail=HOSTILE, k=8)
    assert reply.body.isascii() and json.loads(reply.body)["tail"] == HOSTILE


@pytest.mark.slow
def test_the_command_serves_until_ctrl_c(model_path: Path) -> None:
    words = [sys.executable, "-m", "grash", "serve", str(model_path), "--port", "0", "--threads", "1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr:
        address, loaded = process.stderr.readline(), process.stderr.readline()
        assert "places" in loaded and "press Ctrl-C to stop" in address
        served = Client(int(address.split(":")[2].split("/")[0]))
        wait_for(lambda: answers(served))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == "Stopped.\n"


def test_ctrl_c_is_no_error(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(server: ModelServer) -> None:
        server._socket.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelServer, "run", press)
    ran = run("serve", model_path, "--port", "0")
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "Stopped.")


def answers(served: Client) -> bool:
    try:
        return served.get("/api/ask", head="Lima", relation="near").status == 200
    except OSError:
        return False
