"""Concurrent questions, answered together: one ranking call scores all that are waiting.

While a batch is ranked, further questions wait and become the next batch, so nothing is delayed on purpose and a busy
server works in large batches. Questions with the same conditions on answers and similar k share a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from grash.api.model import Model, Prediction, Query
from grash.errors import GrashError

MAX_BATCH = 256  # questions ranked together
MAX_WAITING = 10_000  # questions that wait at most; more are turned away


@dataclass(frozen=True)
class Conditions:
    """Conditions on the answers of a question, as in `Model.predict`."""

    new_only: bool = False
    like_known: bool = False
    answer_type: str | None = None


@dataclass(frozen=True)
class Question:
    query: Query
    k: int
    conditions: Conditions


class Busy(GrashError):
    """Too many questions are waiting."""


class Batcher:
    """Collects questions of one event loop and answers them in a thread of `executor`, a batch at a time."""

    def __init__(self, model: Model, executor: Executor, count: Callable[[int], None]) -> None:
        self._model, self._executor, self._count = model, executor, count
        self._waiting: list[tuple[Question, asyncio.Future[list[Prediction]]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    async def ask(self, questions: list[Question]) -> list[list[Prediction]]:
        """Return the answers of each question; raises Busy, or the error of the first question that has one."""
        if len(self._waiting) + len(questions) > MAX_WAITING:
            raise Busy(f"{len(self._waiting):,} questions are waiting: try again later.")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in questions]
        self._waiting += zip(questions, futures)
        if self._task is None:
            self._task = loop.create_task(self._work())
        return list(await asyncio.gather(*futures))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                asked = [(question, future) for question, future in batch if not future.done()]  # the client is there
                self._count(len(asked))
                results = await loop.run_in_executor(
                    self._executor, answer_batch, self._model, [question for question, _ in asked]
                )
                for (_, future), result in zip(asked, results):
                    if future.done():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._task = None


def answer_batch(model: Model, questions: list[Question]) -> list[list[Prediction] | Exception]:
    """Return the answers of each question, or its error.

    Questions with the same conditions share a ranking call, unless one asks for twice as many answers as another.
    """
    groups: dict[tuple[Conditions, bool, int], list[int]] = {}
    for i, question in enumerate(questions):
        size = (question.k - 1).bit_length()
        groups.setdefault((question.conditions, question.query.asked == "relation", size), []).append(i)
    results: list[list[Prediction] | Exception] = [[] for _ in questions]
    for (conditions, _, _), places in groups.items():
        most = max(questions[i].k for i in places)
        try:
            found = model.predict_many(
                [questions[i].query for i in places], most, new_only=conditions.new_only,
                like_known=conditions.like_known, answer_type=conditions.answer_type,
            )  # fmt: skip
            for i, answers in zip(places, found):
                results[i] = answers[: questions[i].k]
        except Exception as error:  # a defect must not leave the other questions waiting
            for i in places:
                results[i] = error
    return results
