"""A graph of any size out of nothing but a seed: written part by part, never in memory as a whole.

planted.py says which triples there are; here they are made in blocks by two threads, dealt into piles on disk,
and every pile is shuffled as it is moved to its place, so that triples that were made together are strangers. Goes
to an encoded dataset, or to a text file of names to try `grash prepare` with.
"""

from __future__ import annotations

import math
import tempfile
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.arrays import ArrayWriter
from grash.data.dataset import DATASET_FILE, MAX_ID, SPLITS, Dataset, SplitName
from grash.data.interning import Whole
from grash.data.readers.options import SourceOptions
from grash.data.triple_set import TripleSet
from grash.errors import ConfigError, InputError
from grash.files import atomic_file, atomic_folder, repair_folder

Watch = Callable[[str, float, int], None]  # told what is being done, the share that is done, triples so far

_ROWS = 1 << 22  # triples of a block, and of a pile: what is in memory at a time is a few of these
_MOST_PILES = 512  # each is an open file, and a process may usually have 1,024
_THREADS = 2
T = TypeVar("T")


def generate(
    out: Path | str,
    graph: PlantedGraph,
    *,
    n_valid: int | None = None,
    n_test: int | None = None,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Dataset:
    """Writes a graph as an encoded dataset into the folder `out`, wholly or not at all, and returns it, mapped.

    n_valid, n_test: 5 % each, at most 10,000, by default. Every entity and relation occurs in train. Ids, no names.
    The same graph and counts give the same files. About 0.4 GiB of memory up to two billion triples, beyond that
    more in proportion, and 24 bytes of disk per triple.
    """
    out = Path(out)
    held_out = _held_out(graph, n_valid, n_test)
    check_free(out, overwrite=overwrite)
    with atomic_folder(out, overwrite=overwrite) as aside:
        _write_splits(aside, graph, held_out, watch)
        Dataset.seal(
            aside,
            n_entities=graph.n_entities,
            n_relations=graph.n_relations,
            name=out.name.removesuffix(".grash") or "generated",
            provenance={"generated": asdict(graph)},
        )
    return Dataset.load(out)


def generate_text(out: Path | str, graph: PlantedGraph, *, watch: Watch | None = None) -> None:
    """Writes all triples of a graph as lines of names (Q17, tab, P3, tab, Q4) into the file `out`, in random order."""
    out = Path(out)
    repair_folder(out)  # piles of a process that was killed
    with (
        atomic_file(out) as aside,
        aside.open("wb") as file,
        tempfile.TemporaryDirectory(dir=aside.parent, prefix=f".{out.name}.", suffix=".part") as piles,
    ):
        for block in _shuffled(graph, Path(piles), {}, None, watch):
            file.write(as_lines(block))


def check_free(out: Path, *, overwrite: bool) -> None:
    """Says before the work what writing would say after it; a folder that a kill left aside is brought back."""
    repair_folder(out)
    if out.exists() and not overwrite:
        raise InputError(f"{out} already exists: give another place, or --overwrite (overwrite=True).")
    if out.is_dir() and not (out / DATASET_FILE).is_file():
        raise InputError(f"{out} holds no encoded dataset, so it is not overwritten: give another folder.")


def _held_out(graph: PlantedGraph, n_valid: int | None, n_test: int | None) -> dict[str, int]:
    given = SourceOptions(n_valid=n_valid, n_test=n_test)
    movable = graph.n_triples - graph.n_entities
    counts = {"valid": given.n_split_off("valid", graph.n_triples), "test": given.n_split_off("test", graph.n_triples)}
    if sum(counts.values()) > movable:
        if n_valid is not None or n_test is not None:
            raise ConfigError(
                f"{counts['valid']:,} valid and {counts['test']:,} test triples are asked for, and {movable:,} can be "
                f"held out, since every entity keeps a triple in train: give fewer, or more triples."
            )
        counts = {"valid": movable // 2, "test": movable - movable // 2}
    return counts


def _write_splits(folder: Path, graph: PlantedGraph, held_out: dict[str, int], watch: Watch | None) -> None:
    with ExitStack() as stack:
        piles = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        files = {s: stack.enter_context(ArrayWriter(folder / f"{s}.npy", np.int32, (3,))) for s in SPLITS}
        for block in _shuffled(graph, piles, held_out, files, watch):
            files["train"].append(block)


def _shuffled(
    graph: PlantedGraph,
    folder: Path,
    held_out: dict[str, int],
    files: Mapping[SplitName, ArrayWriter] | None,
    watch: Watch | None,
) -> Iterator[Triples]:
    """The train triples in random order, in blocks; held-out ones go to their files as they are made."""
    bounds = _bounds(graph)
    n_blocks = len(bounds) - 1
    n_piles = min(n_blocks, _MOST_PILES)
    watch = watch or (lambda what, share, n_triples: None)
    with ExitStack() as stack:
        piles = [stack.enter_context((folder / f"{i}").open("w+b")) for i in range(n_piles)]

        def make(i: int) -> tuple[dict[str, Triples], Triples, NDArray[np.int64]]:
            parts = _block(graph, bounds[i], bounds[i + 1], held_out)
            return parts, *_dealt(parts["train"], n_piles, np.uint64(graph.seed), i)

        for i, (parts, dealt, starts) in enumerate(_threaded(make, n_blocks)):
            for split, file in (files or {}).items():
                if split != "train":
                    file.append(parts[split])
            for pile, begin, end in zip(piles, starts[:-1], starts[1:]):
                pile.write(dealt[begin:end].data)
            watch("making", (i + 1) / n_blocks, graph.rows_before(bounds[i + 1]))

        def mix(i: int) -> Triples:
            piles[i].seek(0)
            triples = np.fromfile(piles[i], np.int32).reshape(-1, 3)
            piles[i].close()
            (folder / f"{i}").unlink()
            _shuffle(triples, np.uint64(graph.seed), i)
            return triples

        for i, triples in enumerate(_threaded(mix, n_piles)):
            yield triples
            watch("shuffling", (i + 1) / n_piles, 0)


def _bounds(graph: PlantedGraph) -> list[int]:
    """Places between which heads have some _ROWS triples together."""
    n_blocks = max(1, round(graph.n_triples / _ROWS))
    places = range(graph.n_entities)
    bounds = [bisect_left(places, i * graph.n_triples // n_blocks, key=graph.rows_before) for i in range(n_blocks)]
    return [*bounds, graph.n_entities]


def _block(graph: PlantedGraph, first: int, last: int, held_out: dict[str, int]) -> dict[str, Triples]:
    """The triples of the heads of some places by split; every head keeps its first in train.

    Every block gives its share of the held-out triples, so that the counts come out exactly.
    """
    triples = graph.triples(first, last)
    movable = np.ones(len(triples), bool)
    movable[graph.first_rows(first, last)] = False
    before, after = (graph.rows_before(place) - place for place in (first, last))  # movable ones up to there
    in_all = max(1, graph.n_triples - graph.n_entities)
    ends = np.cumsum([0, held_out.get("valid", 0), held_out.get("test", 0)])
    shares = [int(after * int(end) // in_all) - int(before * int(end) // in_all) for end in ends]
    random = np.random.default_rng([graph.seed, 2, first])
    rows = np.flatnonzero(movable)[random.choice(after - before, shares[2], replace=False)]
    in_train = np.ones(len(triples), bool)
    in_train[rows] = False
    parts = (in_train, np.sort(rows[: shares[1]]), np.sort(rows[shares[1] :]))
    return {split: triples[part] for split, part in zip(SPLITS, parts)}


def _threaded(make: Callable[[int], T], n: int) -> Iterator[T]:
    """make(0), make(1), … in order, the next ones being made in threads."""
    with ThreadPoolExecutor(_THREADS) as threads:
        coming: deque[Future[T]] = deque()
        for i in range(n + _THREADS):
            if i >= _THREADS and coming:
                yield coming.popleft().result()
            if i < n:
                coming.append(threads.submit(make, i))


def _dealt(triples: Triples, n_piles: int, seed: np.uint64, block: int) -> tuple[Triples, NDArray[np.int64]]:
    """The triples by the pile that each falls to at random, and where each pile begins (n_piles + 1,)."""
    dealt, starts = np.empty_like(triples), np.zeros(n_piles + 1, np.int64)
    _deal(triples, seed, block, starts, dealt)
    return dealt, starts


@njit(cache=True, nogil=True)
def _random(state: NDArray[np.uint64]) -> np.uint64:
    """The next 64 bits (an xorshift with a multiplication)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return (x * np.uint64(0x2545F4914F6CDD1D)) >> np.uint64(32)


@njit(cache=True, nogil=True)
def _started(seed: np.uint64, stage: int, block: int) -> NDArray[np.uint64]:
    state = np.empty(1, np.uint64)
    state[0] = (seed ^ (np.uint64(2 * block + stage + 1) * np.uint64(0x9E3779B97F4A7C15))) | np.uint64(1)
    for _ in range(8):
        _random(state)
    return state


@njit(cache=True, nogil=True)
def _deal(triples: Triples, seed: np.uint64, block: int, starts: NDArray[np.int64], dealt: Triples) -> None:
    n, n_piles = triples.shape[0], starts.size - 1
    state, pile = _started(seed, 0, block), np.empty(n, np.int32)
    for row in range(n):
        pile[row] = (_random(state) * np.uint64(n_piles)) >> np.uint64(32)
        starts[pile[row] + 1] += 1
    for i in range(n_piles):
        starts[i + 1] += starts[i]
    next_one = starts[:-1].copy()
    for row in range(n):
        to = next_one[pile[row]]
        next_one[pile[row]] += 1
        for column in range(3):
            dealt[to, column] = triples[row, column]


@njit(cache=True, nogil=True)
def _shuffle(triples: Triples, seed: np.uint64, block: int) -> None:
    state = _started(seed, 1, block)
    for row in range(triples.shape[0] - 1, 0, -1):
        other = np.int64((_random(state) * np.uint64(row + 1)) >> np.uint64(32))
        for column in range(3):
            triples[row, column], triples[other, column] = triples[other, column], triples[row, column]


# = What a generated graph is made of: groups of entities, kinds of relations, and the tails that both lead to.
# =
# = Used by generate.py. Every triple is a function of the seed and its place, so that any part can be made by itself; what
# = an entity heads is made in one go, which is why no triple can come twice. A model that has found the groups answers as
# = well as `oracle_tail_mrr` says, and none can do better than by luck.

Triples = NDArray[np.int32]

GROUP_SIZE = 32
MOST_KINDS = 8
_TRIES = 16  # at what the groups say, before a triple that is there already becomes any other one
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@dataclass(frozen=True)
class PlantedGraph:
    """A graph of exactly so many entities and relations, all of which occur, and distinct triples.

    Entities have places 0 … E - 1, the busiest first; ids are places in another order (`ids_of`). The heads' degrees
    fall as the root of the place, those of the tails by groups and within them, both as place^(-2/3). A relation's kind
    and a head's group say which group the tail is in; a share `noise` of the triples has any tail.
    """

    n_entities: int
    n_relations: int
    n_triples: int
    seed: int = 0
    noise: float = 0.1

    def __post_init__(self) -> None:
        if not 2 <= self.n_entities <= MAX_ID:
            raise ConfigError(f"{self.n_entities:,} entities were asked for, and 2 to {MAX_ID:,} are possible.")
        if not 1 <= self.n_relations <= self.n_entities:
            raise ConfigError(
                f"{self.n_relations:,} relations were asked for, and from 1 up to as many as there are entities "
                f"({self.n_entities:,}) are possible: each is the relation of some entity's first triple."
            )
        if self.n_triples < self.n_entities:
            raise ConfigError(
                f"{self.n_triples:,} triples were asked for with {self.n_entities:,} entities, and every entity is "
                f"the head of one: give at least as many triples as entities."
            )
        if self.degree(0) > self.n_relations * (self.n_entities - 1) // 2:
            raise ConfigError(
                f"{self.n_triples:,} distinct triples are too many for {self.n_entities:,} entities and "
                f"{self.n_relations:,} relations: give fewer triples, more entities or more relations."
            )
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"noise={self.noise}, and a share from 0 to 1 is needed.")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={self.seed}, and a number from 0 to 2**63 - 1 is needed.")

    @property
    def n_groups(self) -> int:
        return -(-self.n_entities // GROUP_SIZE)

    @property
    def n_kinds(self) -> int:
        return min(MOST_KINDS, self.n_relations)

    def degree(self, place: int) -> int:
        """How many triples the entity at a place is the head of: 1 and more."""
        return int(self.rows_before(place + 1) - self.rows_before(place))

    def rows_before(self, place: int) -> int:
        """How many triples have their head at an earlier place."""
        return place + int(_extra_before(place, self.n_entities, self.n_triples - self.n_entities))

    def triples(self, first: int, last: int) -> Triples:
        """The triples (m, 3), in ids, whose heads are at the places from first up to last, one head after the other."""
        begin = self.rows_before(first)
        triples = np.empty((self.rows_before(last) - begin, 3), np.int32)
        widest = max((self.degree(place) for place in range(first, min(last, first + 3))), default=1)
        step, shift = self._spread()
        _fill(
            first, last, self.n_entities, self.n_relations, self.n_triples - self.n_entities, self.n_groups,
            self.n_kinds, self.noise, np.uint64(self.seed), step, shift, 1 << int(4 * widest).bit_length(), triples,
        )  # fmt: skip
        return triples

    def first_rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Which rows of triples(first, last) are the first of their head."""
        rows = np.empty(last - first, np.int64)
        _rows_before(first, self.n_entities, self.n_triples - self.n_entities, rows)
        return rows - self.rows_before(first)

    def ids_of(self, places: NDArray[np.integer]) -> NDArray[np.int64]:
        step, shift = self._spread()
        return (np.asarray(places, np.int64) * step + shift) % self.n_entities

    def places_of(self, ids: NDArray[np.integer]) -> NDArray[np.int64]:
        step, shift = self._spread()
        return (np.asarray(ids, np.int64) - shift) % self.n_entities * pow(step, -1, self.n_entities) % self.n_entities

    def _spread(self) -> tuple[int, int]:
        """A step that meets every id once, and where it begins: neighbors in place are strangers in memory."""
        random = np.random.default_rng([self.seed, 1])
        while True:
            step = int(random.integers(1, self.n_entities))
            if math.gcd(step, self.n_entities) == 1:
                return step, int(random.integers(self.n_entities))


def oracle_tail_mrr(graph: PlantedGraph, asked: Triples, known: TripleSet) -> float:
    """The filtered MRR over the tails of `asked` (m, 3) of one who knows every group and how busy its members are.

    Members of the right group are ranked by how often they are drawn, without those that are known answers; a tail
    outside of the group (noise) is counted as found in the middle of all entities. `known`: the triples of all splits.
    """
    if not len(asked):
        return 0.0
    heads, tails = graph.places_of(asked[:, 0]), graph.places_of(asked[:, 2])
    groups = np.empty(len(asked), np.int64)
    _tail_groups(heads % graph.n_groups, asked[:, 1] % graph.n_kinds, np.uint64(graph.seed), graph.n_groups, groups)
    members = np.arange(GROUP_SIZE)[None, :]
    places = groups[:, None] + graph.n_groups * members  # (m, GROUP_SIZE)
    others = np.empty((*places.shape, 3), np.int32)
    others[:, :, :2] = asked[:, None, :2]
    others[:, :, 2] = graph.ids_of(np.minimum(places, graph.n_entities - 1))
    rank_in_group = tails // graph.n_groups
    open_ones = ~known.contains(others.reshape(-1, 3)).reshape(places.shape) & (places < graph.n_entities)
    rank = 1 + np.count_nonzero(open_ones & (members < rank_in_group[:, None]), axis=1)
    return float(np.mean(1 / np.where(tails % graph.n_groups == groups, rank, graph.n_entities / 2)))


@njit(cache=True, nogil=True)
def _extra_before(place: Whole, n_entities: Whole, n_extra: Whole) -> Whole:
    """Triples beyond the first of each head, up to a place: all of them at the last, exactly."""
    return np.int64(n_extra * math.sqrt(place / n_entities))


@njit(cache=True, nogil=True)
def _rows_before(first: Whole, n_entities: Whole, n_extra: Whole, rows: NDArray[np.int64]) -> None:
    for i in range(rows.size):
        rows[i] = first + i + _extra_before(first + i, n_entities, n_extra)


@njit(cache=True, nogil=True, inline="always")
def _mixed(x: Whole) -> Whole:
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@njit(cache=True, nogil=True, inline="always")
def _uniform(key: Whole, number: Whole) -> Whole:
    """The number-th draw from 0 to below 1 of a key."""
    return np.float64(_mixed(key + np.uint64(number) * _GOLDEN) >> _S11) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True, inline="always")
def _skewed(u: Whole, n: Whole) -> Whole:
    return min(n - 1, np.int64(n * (u * u * u)))


@njit(cache=True, nogil=True, inline="always")
def _tail_group(group: Whole, kind: Whole, seed: Whole, n_groups: Whole) -> Whole:
    key = _mixed(_mixed(seed ^ _M1) + np.uint64(group) * _GOLDEN)
    return _skewed(_uniform(key, kind), n_groups)


@njit(cache=True, nogil=True)
def _tail_groups(
    groups: NDArray[np.int64], kinds: NDArray[np.int32], seed: Whole, n_groups: Whole, found: NDArray[np.int64]
) -> None:
    for i in range(found.size):
        found[i] = _tail_group(groups[i], kinds[i], seed, n_groups)


@njit(cache=True, nogil=True)
def _fill(
    first: Whole, last: Whole, n_entities: Whole, n_relations: Whole, n_extra: Whole, n_groups: Whole,
    n_kinds: Whole, noise: float, seed: Whole, step: Whole, shift: Whole, n_slots: Whole, triples: Triples,
) -> None:  # fmt: skip
    """Head by head. What a head has already lies in slots, stamped with the head, so that they are never cleared."""
    pairs, stamps = np.empty(n_slots, np.int64), np.zeros(n_slots, np.int32)
    row = 0
    for place in range(first, last):
        n = 1 + _extra_before(place + 1, n_entities, n_extra) - _extra_before(place, n_entities, n_extra)
        stamp = np.int32(place - first + 1)
        head_key = _mixed(_mixed(seed) + np.uint64(place) * _GOLDEN)
        for k in range(n):
            attempt = 0
            while True:
                key = _mixed(head_key + np.uint64(k * 4096 + attempt + 1) * _GOLDEN)
                relation, tail = _draw(key, attempt, place, n_entities, n_relations, n_groups, n_kinds, noise, seed)
                if k == 0 and place < n_relations:
                    relation = place
                    tail = (
                        tail
                        if attempt > 0
                        else _planted_tail(key, place, relation, n_entities, n_groups, n_kinds, seed)
                    )
                if tail != place and _is_new(np.int64(relation) << 32 | tail, stamp, pairs, stamps):
                    break
                attempt += 1
            triples[row, 0] = (place * step + shift) % n_entities
            triples[row, 1] = relation
            triples[row, 2] = (tail * step + shift) % n_entities
            row += 1


@njit(cache=True, nogil=True, inline="always")
def _draw(
    key: Whole, attempt: Whole, place: Whole, n_entities: Whole, n_relations: Whole, n_groups: Whole,
    n_kinds: Whole, noise: float, seed: Whole,
) -> tuple[Whole, Whole]:  # fmt: skip
    """(relation, place of the tail)"""
    if attempt >= _TRIES:
        relation, tail = np.int64(n_relations * _uniform(key, 0)), np.int64(n_entities * _uniform(key, 1))
    else:
        relation = _skewed(_uniform(key, 0), n_relations)
        if _uniform(key, 1) < noise:
            tail = np.int64(n_entities * _uniform(key, 2))
        else:
            tail = _planted_tail(key, place, relation, n_entities, n_groups, n_kinds, seed)
    return relation, min(tail, n_entities - 1)


@njit(cache=True, nogil=True, inline="always")
def _planted_tail(
    key: Whole, place: Whole, relation: Whole, n_entities: Whole, n_groups: Whole, n_kinds: Whole, seed: Whole
) -> Whole:
    group = _tail_group(place % n_groups, relation % n_kinds, seed, n_groups)
    size = (n_entities - group + n_groups - 1) // n_groups
    return group + n_groups * _skewed(_uniform(key, 3), size)


@njit(cache=True, nogil=True, inline="always")
def _is_new(pair: Whole, stamp: Whole, pairs: NDArray[np.int64], stamps: NDArray[np.int32]) -> bool:
    """Whether the head that belongs to a stamp has not had this pair yet; it has then."""
    at = np.int64(_mixed(np.uint64(pair)) & np.uint64(pairs.size - 1))
    new = True
    while new and stamps[at] == stamp:
        new = pairs[at] != pair
        at = (at + 1) & (pairs.size - 1)
    if new:
        pairs[at], stamps[at] = pair, stamp
    return new


# = Ids become lines of text, Q17 tab P3 tab Q4: generated graphs as files of names. Used by generate.py.

_MOST = 3 * 12  # bytes of a line: three letters with up to ten digits, each with what follows it
_ROWS_lines = 1 << 20


def as_lines(triples: NDArray[np.int32]) -> bytearray:
    """The lines of triples (n, 3)."""
    text = bytearray()
    buffer = np.empty(_MOST * min(_ROWS_lines, len(triples)), np.uint8)
    for start in range(0, len(triples), _ROWS_lines):
        used = _write_lines(triples[start : start + _ROWS_lines], buffer)
        text += buffer[:used].data
    return text


@njit(cache=True, nogil=True)
def _write_lines(triples: NDArray[np.int32], buffer: NDArray[np.uint8]) -> Whole:
    at = 0
    for row in range(triples.shape[0]):
        for column in range(3):
            buffer[at] = ord("P") if column == 1 else ord("Q")
            at = _write_number(np.int64(triples[row, column]), buffer, at + 1)
            buffer[at] = ord("\n") if column == 2 else ord("\t")
            at += 1
    return at


@njit(cache=True, nogil=True, inline="always")
def _write_number(value: Whole, buffer: NDArray[np.uint8], at: Whole) -> Whole:
    """Writes the digits of a number; returns where they end."""
    end, rest = at + 1, value
    while rest >= 10:
        rest //= 10
        end += 1
    place = end
    while place > at:
        place -= 1
        buffer[place] = 48 + value % 10
        value //= 10
    return end
