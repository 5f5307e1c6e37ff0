"""The web application of `grash serve`: REST endpoints with OpenAPI, the page, health and metrics.

FastAPI describes and checks requests; `guard.py` is in front of it; `service.py` has the answers. Ranking runs in one
thread, which `batching.py` feeds; the rest runs in two others, so the event loop never computes.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from grash import __version__
from grash.api.model import Query as IdQuery
from grash.errors import Diverged, FormatError, GrashError, InputError, UnknownName
from grash.serve.batching import Batcher, Busy, Conditions, Question
from grash.serve.guard import Metrics
from grash.serve.loading import content_security_policy, home_page
from grash.serve.service import MAX_FACTS, MAX_K, Service, check_k

MAX_QUESTIONS = 1000  # of a batch
MAX_ANSWERS = 100_000  # of a batch
_FEW = 1000  # answers that are written on the event loop, within milliseconds
_MAX_JOBS = 64  # searches, facts and reasons that may wait at a time
_MAX_NAME = 4096  # characters of a name in a request
_COLUMNS = ("question", "head", "relation", "tail", "asked", "rank", "answer", "score", "known", "probability")
_FORMULA = re.compile(r"^[=+\-@\t\r]")

Name = Annotated[str, Query(max_length=_MAX_NAME, description="Name, or a short form of an IRI.")]
Count = Annotated[int, Query(description=f"Number of answers, 1 to {MAX_K:,}.")]
Format = Annotated[Literal["json", "csv"], Query(description="Whether the answers are JSON or a CSV table.")]
Answered = Iterable[dict[str, Any]]  # questions with their answers


class AskedQuestion(BaseModel):
    """A question: two of head, relation and tail by name; the third is asked for."""

    model_config = ConfigDict(extra="forbid")
    head: str | None = Field(None, max_length=_MAX_NAME, description="Name of the head; leave it out to ask for it.")
    relation: str | None = Field(None, max_length=_MAX_NAME, description="Name of the relation, or leave it out.")
    tail: str | None = Field(None, max_length=_MAX_NAME, description="Name of the tail, or leave it out.")


class OneQuestion(AskedQuestion):
    """A question with conditions on its answers, as parameters of an address."""

    k: int = Field(10, description=f"Number of answers, 1 to {MAX_K:,}.")
    like_known: bool = Field(True, description="Only entities seen on that side of the relation in train.")
    new_only: bool = Field(False, description="Leave out answers that are in the graph.")
    answer_type: str | None = Field(None, max_length=_MAX_NAME, description="Only entities with this type.")
    format: Format = "json"


class AskedBatch(BaseModel):
    """Questions with the same conditions on their answers."""

    model_config = ConfigDict(extra="forbid")
    questions: list[AskedQuestion] = Field(description=f"At most {MAX_QUESTIONS:,}.")
    k: int = Field(
        10, description=f"Number of answers, 1 to {MAX_K:,}; times the number of questions at most {MAX_ANSWERS:,}."
    )
    like_known: bool = Field(True, description="Only entities seen on that side of the relation in train.")
    new_only: bool = Field(False, description="Leave out answers that are in the graph.")
    answer_type: str | None = Field(None, max_length=_MAX_NAME, description="Only entities with this type.")


class Answer(BaseModel):
    rank: int
    name: str
    id: int
    score: float
    known: bool = Field(description="Whether the graph has the triple.")
    probability: float | None = Field(None, description="Only of a calibrated model.")


class Answers(BaseModel):
    head: str | None
    relation: str | None
    tail: str | None
    asked: Literal["head", "relation", "tail"]
    answers: list[Answer]
    meaning: str | None = Field(None, description="What the probabilities mean, of the first new answer above all.")


class AnsweredBatch(BaseModel):
    questions: list[Answers]


class Problem(BaseModel):
    """What is wrong with a request."""

    code: str
    message: str
    suggestions: list[str] = Field([], description="Similar names, if a name is unknown.")
    question: int | None = Field(None, description="Of a batch, the number of the question, starting at 1.")


_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 404, 405, 408, 413, 503)
}


def make_app(service: Service, metrics: Metrics) -> Any:
    """Return the ASGI application that serves a model."""
    api = FastAPI(
        title="grash", version=__version__, docs_url=None, redoc_url=None, responses=_PROBLEMS,
        redirect_slashes=False,
        description="Questions to a trained knowledge graph embedding model. Read-only.",
    )  # fmt: skip
    endpoints = _Endpoints(service, metrics)
    get: dict[str, Any] = {"methods": ["GET"]}
    add = partial(api.add_api_route, dependencies=[Depends(_refuse_unknown_parameters)])
    add("/api/model", endpoints.about, **get, summary="The model, its graph and its relations")
    add("/api/search", endpoints.search, **get, summary="Names that begin like a text, or nearly")
    api.add_api_route(
        "/api/ask", endpoints.ask, **get, summary="The best answers to a question", response_model=Answers,
        openapi_extra={"parameters": _parameters(OneQuestion)},
    )  # fmt: skip
    add("/api/ask", endpoints.ask_many, methods=["POST"], summary="Many questions", response_model=AnsweredBatch)
    add("/api/explain", endpoints.explain, **get, summary="Reasons for a triple")
    add("/api/neighbors", endpoints.neighbors, **get, summary="Entities with similar embeddings")
    add("/api/facts", endpoints.facts, **get, summary="Triples of an entity, and those around it")
    add("/api/map", endpoints.map, **get, summary="Places and colors of the entities, in two dimensions")
    api.add_api_route("/health", endpoints.health, **get, summary="Whether the model is served and undamaged")
    summary = "Numbers of requests and their times, for Prometheus"
    api.add_api_route("/metrics", endpoints.metrics_text, **get, response_class=PlainTextResponse, summary=summary)
    _add_pages(api)
    _add_errors(api, endpoints)
    endpoints.ranking.submit(service.rank_once)
    # FastAPI itself looks for telemetry settings at every request, which takes as long as a tenth of a question
    return partial(Starlette.__call__, api)


def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the fields of a model as parameters of an address, for OpenAPI."""
    fields = model.model_json_schema()["properties"]
    about = {"in": "query", "required": False}
    return [{"name": n, **about, "description": f.pop("description"), "schema": f} for n, f in fields.items()]


async def _refuse_unknown_parameters(request: Request) -> None:
    """Refuse a parameter of the address that the endpoint does not have; GET /api/ask has its own check."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise Refused(400, "bad_request", _no_parameter(name))


def _no_parameter(name: str) -> str:
    return f"There is no parameter or field {name[:200]!r}: /docs lists them."


class _Endpoints:
    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service, self.metrics = service, metrics
        self.ranking = ThreadPoolExecutor(1, thread_name_prefix="ranking")
        self.others = ThreadPoolExecutor(2, thread_name_prefix="others")
        self.batcher = Batcher(service.model, self.ranking, metrics.count_batch)
        self.jobs = 0

    async def about(self) -> Response:
        return _json(await self.run(lambda: self.service.about))

    async def search(
        self,
        q: Annotated[str, Query(max_length=_MAX_NAME, description="Beginning of a name; small mistakes are forgiven.")],
        k: Count = 10,
        kind: Annotated[Literal["entity", "relation"], Query(description="What to look for.")] = "entity",
    ) -> Response:  # fmt: skip
        return _json({"results": await self.run(lambda: self.service.search(q, k, kind))})

    async def ask(self, request: Request) -> Response:
        try:  # one model, not one parameter each: FastAPI takes longer to collect eight than the model to check them
            asked = OneQuestion.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False)) from None
        conditions = Conditions(asked.new_only, asked.like_known, asked.answer_type)
        return await self._answer([asked], asked.k, conditions, _one_json if asked.format == "json" else _csv)

    async def ask_many(self, batch: AskedBatch, format: Format = "json") -> Response:
        if not 1 <= len(batch.questions) <= MAX_QUESTIONS:
            raise Refused(
                413 if batch.questions else 400, "batch_size",
                f"The batch has {len(batch.questions):,} questions: send 1 to {MAX_QUESTIONS:,}.",
            )  # fmt: skip
        check_k(batch.k)
        if (n := len(batch.questions) * batch.k) > MAX_ANSWERS:
            raise Refused(
                413, "batch_size",
                f"The batch asks for {n:,} answers: send fewer questions or a smaller k, for at most {MAX_ANSWERS:,}.",
            )  # fmt: skip
        conditions = Conditions(batch.new_only, batch.like_known, batch.answer_type)
        return await self._answer(batch.questions, batch.k, conditions, _many_json if format == "json" else _csv)

    async def explain(
        self,
        head: Name,
        relation: Name,
        tail: Name,
        k: Annotated[int, Query(description=f"Number of reasons, 1 to {MAX_K:,}.")] = 10,
    ) -> Response:
        return _json(await self.run(lambda: self.service.explain(head, relation, tail, k), self.ranking))

    async def neighbors(self, entity: Name, k: Count = 10) -> Response:
        return _json(await self.run(lambda: self.service.neighbors(entity, k), self.ranking))

    async def facts(
        self, entity: Name,
        k: Annotated[int, Query(description=f"Number of triples, 1 to {MAX_FACTS:,}.")] = 100,
    ) -> Response:  # fmt: skip
        return _json(await self.run(lambda: self.service.facts(entity, k)))

    async def map(self) -> Response:
        return await self.run(lambda: _json(self.service.map()))

    async def health(self) -> Response:
        service = self.service
        replaced = await self.run(lambda: service.replaced)
        if service.verified is False:
            return _json({"status": "damaged", "code": "model_damaged", "message": service.damage}, 503)
        content: dict[str, Any] = {"status": "ok", "verified": bool(service.verified)}
        if replaced is not None:
            content = {"status": "stale", "code": "model_replaced", "message": replaced}
        return _json(content)

    async def metrics_text(self) -> Response:
        return PlainTextResponse(self.metrics.text(self.batcher.n_waiting), media_type="text/plain; version=0.0.4")

    async def _answer(
        self, asked: Sequence[AskedQuestion], k: int, conditions: Conditions, write: Callable[[Answered], Response]
    ) -> Response:
        check_k(k)
        service = self.service
        if conditions.answer_type is not None:
            await self.run(lambda: service.check_type(conditions.answer_type or ""))
        at_hand = all(
            service.at_hand(q.head) and service.at_hand(q.relation, "relation") and service.at_hand(q.tail)
            for q in asked
        )
        queries = self._queries(asked) if at_hand else await self.run(lambda: self._queries(asked))
        found = await self.batcher.ask([Question(query, k, conditions) for query in queries])

        def reply() -> Response:
            return write(service.answers(query, answers) for query, answers in zip(queries, found))

        if sum(map(len, found)) <= _FEW:
            return reply()
        return await asyncio.get_running_loop().run_in_executor(self.others, reply)

    def _queries(self, asked: Sequence[AskedQuestion]) -> list[IdQuery]:
        queries = []
        for i, question in enumerate(asked, 1):
            try:
                queries.append(self.service.query(question.head, question.relation, question.tail))
            except GrashError as error:
                raise error if len(asked) == 1 else InBatch(i, error) from error
        return queries

    async def run(self, work: Callable[[], Any], executor: ThreadPoolExecutor | None = None) -> Any:
        """Run something in a thread; turn it away if too much is waiting.

        What computes with the model runs in the thread of the ranking, since not every thread pool of numba can be used
        by two threads at a time.
        """
        if self.jobs >= _MAX_JOBS:
            raise Busy(f"{self.jobs} requests are waiting: try again later.")
        self.jobs += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(executor or self.others, work)
        finally:
            self.jobs -= 1


class InBatch(GrashError):
    """An error in one question of a batch."""

    def __init__(self, number: int, error: GrashError) -> None:
        super().__init__(str(error))
        self.number, self.error = number, error


class Refused(GrashError):
    """A request that is answered with this status and code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def _add_errors(api: FastAPI, endpoints: _Endpoints) -> None:
    @api.exception_handler(GrashError)
    async def explain(request: Request, error: GrashError) -> Response:
        content: dict[str, Any] = {}
        if isinstance(error, InBatch):
            content["question"], error = error.number, error.error
        status, content["code"] = _status_of(error)
        if isinstance(error, UnknownName):
            named = error
            error = named = await endpoints.run(lambda: endpoints.service.suggested(named))
            content["suggestions"] = named.suggestions
        return _json({**content, "message": str(error)}, status)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _json({"code": "bad_request", "message": _sentence(error.errors()[0], request)}, 400)

    @api.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        message = {
            404: "There is nothing at this address: see /docs.",
            405: "This method is not allowed here: see /docs.",
        }.get(error.status_code, f"{error.detail}.")
        return _json({"code": code, "message": message}, error.status_code)

    @api.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        return _json({"code": "internal", "message": "This is a defect of grash; its log has the traceback."}, 500)


def _sentence(error: dict[str, Any], request: Request) -> str:
    """Return what is wrong with a request that pydantic refused."""
    kind, name = error["type"], ".".join(str(part) for part in error["loc"] if part not in ("query", "body"))[:200]
    if kind == "json_invalid":
        return "The body is not JSON: see /docs."
    if kind == "extra_forbidden":
        return _no_parameter(str(error["loc"][-1]))
    if not name:
        if "json" not in request.headers.get("content-type", ""):
            return "The body must be JSON, with the header 'Content-Type: application/json': see /docs."
        return 'The body must be a JSON object, e.g. {"questions": [{"head": …, "relation": …}]}: see /docs.'
    given = f"not {str(error['input'])[:200]!r}"
    if kind.startswith("int_"):
        return f"{name} must be a whole number, {given}."
    if kind.startswith("bool_"):
        return f"{name} must be true or false, {given}."
    return f"{name}: {error['msg']}."


def _status_of(error: GrashError) -> tuple[int, str]:
    if isinstance(error, Refused):
        return error.status, error.code
    if isinstance(error, Busy):
        return 503, "busy"
    if isinstance(error, UnknownName):
        return 404, "unknown_name"
    if isinstance(error, Diverged | FormatError):
        return 503, "model_unusable"
    return 400, "bad_question" if isinstance(error, InputError) else "bad_request"


def _add_pages(api: FastAPI) -> None:
    page, policy = home_page()
    docs: str | None = None

    @api.get("/", include_in_schema=False)
    async def home() -> Response:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    @api.get("/docs", include_in_schema=False)
    async def documentation() -> Response:
        nonlocal docs
        if docs is None:
            docs = _docs_page(api.openapi())
        return HTMLResponse(docs, headers={"content-security-policy": content_security_policy(docs)})


def _docs_page(schema: dict[str, Any]) -> str:
    """Return the OpenAPI description as a page without scripts or files of others."""
    import jinja2

    source = files("grash.serve").joinpath("page/docs.html.j2").read_text(encoding="utf-8")
    return jinja2.Environment(autoescape=True).from_string(source).render(schema=schema)


def _json(content: Any, status: int = 200) -> Response:
    # ASCII only, so that any text can be encoded
    return Response(json.dumps(content, allow_nan=False).encode(), status, media_type="application/json")


def _one_json(answered: Answered) -> Response:
    return _json(next(iter(answered)))


def _many_json(answered: Answered) -> Response:
    # one question at a time: while json writes, no other thread runs
    text = ", ".join(json.dumps(question, allow_nan=False) for question in answered)
    return Response(f'{{"questions": [{text}]}}'.encode(), media_type="application/json")


def _csv(answered: Answered) -> Response:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for number, question in enumerate(answered, 1):
        parts = [_cell(question[part] or "?") for part in ("head", "relation", "tail")]
        for a in question["answers"]:
            values = (a["rank"], _cell(a["name"]), a["score"], str(a["known"]).lower(), a.get("probability", ""))
            writer.writerow((number, *parts, question["asked"], *values))
    return Response(text.getvalue().encode("utf-8", "backslashreplace"), media_type="text/csv; charset=utf-8")


def _cell(name: str) -> str:
    """Return a name that a spreadsheet does not take for a formula."""
    return f"'{name}" if _FORMULA.match(name) else name
