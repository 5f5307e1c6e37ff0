"""Search names as a person types: beginnings of names and words first, then names with typing errors.

A scan needs no sorted copy of the names: each name has 128 bits, one per pair of neighboring letters (hashed), and a
name without the pairs of the query is passed over after one comparison. With errors, some pairs may be missing, but no
more letters than errors: 32 bits per name tell. Missing pairs must also be where so few errors can put them. The few
others are compared letter by letter.
The bits take 20 bytes per name and are made in one pass over the names; nothing is written to disk. Case, accents of
Latin, Greek and Cyrillic letters, and punctuation are ignored; of an IRI, the part after the last / or # is searched.
"""

from __future__ import annotations

import os
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.vocabulary import Bytes, Offsets, Vocabulary

MAX_QUERY = 256  # letters of a query that are compared

_GAP = np.uint8(32)  # punctuation between words, as one space
_LETTERS = 0x800  # code points with at most two bytes in UTF-8, whose case and accents are known
_SEPARATORS = b" _-/#:,.()[]<>'\"!?;&+|\t\n\r"
_LONGEST = 512  # bytes of a name that are compared
_NO_MATCH = 1 << 30
_BEGINS, _WORD_BEGINS, _PER_ERROR = 1, 2, 4  # cost of a match; the whole name costs 0
_LETTERS_PER_ERROR = 4  # of a query: one error from 4 letters on, two from 8 on
_WORD = 64  # letters of a query whose distances fit into one word
_TOGETHER = 256  # names of which those that may match are loaded together
_TRUST_BEGINNING = 6  # the first letter of a shorter query has no error


class NameSearch:
    """Finds the ids of names that a person may mean; call it with the text typed so far."""

    def __init__(self, names: Vocabulary, weights: NDArray[np.integer]) -> None:
        """weights (n,): of equally good matches, those with more come first, e.g. the degree of an entity."""
        self._names, self._offsets = names.arrays
        self._weights = np.ascontiguousarray(weights, np.int32)
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="names")
        self._bits, self._begins = np.zeros((len(names), 2), np.uint64), np.zeros(len(names), np.uint8)
        self._letters = np.zeros(len(names), np.uint32)
        arrays = (self._names, self._offsets, _folds(), self._bits, self._begins, self._letters)
        self._run(lambda first, last: _fill_index(*arrays, first, last))

    def __call__(self, text: str, k: int = 10) -> NDArray[np.int64]:
        """Return up to k ids, best first: names and words that begin with the text, then with one or two errors."""
        query = _folded(text)
        if not len(query) or k < 1:
            return np.empty(0, np.int64)
        for errors in (0, 1, 2):
            if len(query) < _LETTERS_PER_ERROR * errors:
                break
            found = self._scan(query, k, errors)
            if len(found):
                return found
        return np.empty(0, np.int64)

    def close(self) -> None:
        self._pool.shutdown()

    def _scan(self, query: Bytes, k: int, errors: int) -> NDArray[np.int64]:
        wanted, begin = _bits_of(query), _bits_of(query[:1])
        n_pairs = sum(int(word).bit_count() for word in wanted)
        # a wrong letter changes two pairs, a swap three; of a short query some must remain, also how it begins
        missing = min((0, 3, 4)[errors], max(0, n_pairs - 2))
        if errors and len(query) >= _TRUST_BEGINNING:
            begin = np.zeros(2, np.uint64)

        def scan(first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            costs, ids = np.full(k, _NO_MATCH, np.int64), np.full(k, -1, np.int64)
            arrays = (self._names, self._offsets, self._bits, self._begins, self._letters, self._weights, _folds())
            _find(*arrays, query, wanted, begin, errors, missing, first, last, costs, ids)
            return costs, ids

        parts = self._run(scan)
        costs, ids = (np.concatenate(x) for x in zip(*parts))
        costs, ids = costs[ids >= 0], ids[ids >= 0]
        return ids[np.lexsort((ids, -self._weights[ids], costs))][:k]

    def _run(self, work: Any) -> list[Any]:
        """Call work(first, last) for equal parts of the names, one per core."""
        n_parts = self._pool._max_workers
        edges = np.linspace(0, len(self._weights), n_parts + 1).astype(np.int64)
        return list(self._pool.map(work, edges[:-1].tolist(), edges[1:].tolist()))


@cache
def _folds() -> NDArray[np.uint16]:
    """Return the letter that each code point below 0x800 is compared as; separators become a space."""
    table = np.arange(_LETTERS, dtype=np.uint16)
    for code in range(_LETTERS):
        plain = unicodedata.normalize("NFKD", chr(code)).casefold()
        if plain and ord(plain[0]) < _LETTERS:
            table[code] = ord(plain[0])
    table[np.frombuffer(_SEPARATORS, np.uint8)] = _GAP
    return table


def _folded(text: str) -> Bytes:
    raw = np.frombuffer(unicodedata.normalize("NFC", text).encode("utf-8", "replace")[:MAX_QUERY], np.uint8)
    out = np.empty(_LONGEST, np.uint8)
    return out[: _fold(raw, 0, len(raw), _folds(), out)].copy()


def _bits_of(query: Bytes) -> NDArray[np.uint64]:
    bits = np.zeros((1, 2), np.uint64)
    _set_bits(query, len(query), bits, 0)
    return bits[0]


@njit(cache=True, nogil=True)
def _fold(names: Bytes, start: Any, stop: Any, folds: NDArray[np.uint16], out: Bytes) -> Any:
    """Write the letters of a name to `out` as they are compared, words separated by one space; return their number."""
    length, at = 0, _label(names, start, stop)
    while at < stop and length < out.size - 2:
        byte = np.int64(names[at])
        code, size = byte, 1
        if 0xC2 <= byte <= 0xDF and at + 1 < stop:
            code, size = ((byte & 0x1F) << 6) | (np.int64(names[at + 1]) & 0x3F), 2
        at += size
        if size == 2 or byte < 0x80:
            code = np.int64(folds[code])
        if code == _GAP and (length == 0 or out[length - 1] == _GAP):
            continue
        if code < 0x80 or size == 1:
            out[length] = code
            length += 1
        else:
            out[length], out[length + 1] = 0xC0 | (code >> 6), 0x80 | (code & 0x3F)
            length += 2
    if length and out[length - 1] == _GAP:
        length -= 1
    return length


@njit(cache=True, nogil=True)
def _label(names: Bytes, start: Any, stop: Any) -> Any:
    """Return where the searched part of a name begins: of an IRI, after the last / or #."""
    is_iri, last = False, start
    for at in range(start, stop - 1):
        byte = names[at]
        if byte == 58 and at + 2 < stop and names[at + 1] == 47 and names[at + 2] == 47:
            is_iri = True
        if byte == 47 or byte == 35:
            last = at + 1
    return last if is_iri else start


@njit(cache=True, nogil=True)
def _set_bits(letters: Bytes, length: Any, bits: NDArray[np.uint64], row: Any) -> None:
    before = _GAP
    for i in range(length):
        place = _place(before, letters[i])
        bits[row, np.int64(place >> np.uint64(6))] |= np.uint64(1) << (place & np.uint64(63))
        before = letters[i]


@njit(cache=True, nogil=True, inline="always")
def _place(before: Any, letter: Any) -> Any:
    """Return the bit of a pair of letters, 0 to 127."""
    return ((np.uint64(before) * np.uint64(257) + np.uint64(letter)) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(57)


@njit(cache=True, nogil=True)
def _fill_index(
    names: Bytes, offsets: Offsets, folds: Any, bits: NDArray[np.uint64], begins: Bytes, sets: NDArray[np.uint32],
    first: Any, last: Any,
) -> None:  # fmt: skip
    """Fill the bits, the first letters and the sets of letters of the names from `first` to `last`."""
    letters = np.empty(_LONGEST, np.uint8)
    for i in range(first, last):
        length = _fold(names, offsets[i], offsets[i + 1], folds, letters)
        _set_bits(letters, length, bits, i)
        sets[i] = _letter_set(letters, length)
        if length:
            begins[i] = letters[0]


@njit(cache=True, nogil=True)
def _letter_set(letters: Bytes, length: Any) -> Any:
    """Return 32 bits; some letters share one."""
    found = np.uint32(0)
    for i in range(length):
        found |= np.uint32(1) << np.uint32(letters[i] & 31)
    return found


@njit(cache=True, nogil=True)
def _count_bits(word: Any) -> Any:
    count = 0
    while word != np.uint64(0):
        word &= word - np.uint64(1)
        count += 1
    return count


@njit(cache=True, nogil=True)
def _find(
    names: Bytes, offsets: Offsets, bits: NDArray[np.uint64], begins: Bytes, sets: NDArray[np.uint32],
    weights: NDArray[np.int32], folds: Any, query: Bytes, wanted: NDArray[np.uint64], begin: NDArray[np.uint64],
    errors: Any, missing: Any, first: Any, last: Any, costs: NDArray[np.int64], ids: NDArray[np.int64],
) -> None:  # fmt: skip
    """Keep the best names from `first` to `last`, sorted by cost, then by weight, then by id."""
    letters, k = np.empty(_LONGEST, np.uint8), costs.size
    rows, places = np.empty((3, query.size + 1), np.int64), np.zeros(256, np.uint64)
    for j in range(min(query.size, _WORD)):
        places[query[j]] |= np.uint64(1) << np.uint64(j)
    low, high = wanted[0], wanted[1]
    least = errors * _PER_ERROR + _BEGINS  # the lowest cost, except that of the whole name
    chosen, letter_set = np.empty(_TOGETHER, np.int64), _letter_set(query, query.size)
    pairs = _pair_places(query)
    for block in range(first, last, _TOGETHER):
        n_chosen = _choose(
            bits, sets, wanted, begin, letter_set, pairs, errors, missing, block, min(block + _TOGETHER, last), chosen
        )
        n_hopeful = 0
        for i in chosen[:n_chosen]:
            if ids[k - 1] >= 0 and weights[i] <= weights[ids[k - 1]]:  # only a lower cost helps
                if costs[k - 1] <= least and (bits[i, 0] != low or bits[i, 1] != high):
                    continue
                if errors == 0 and costs[k - 1] <= _WORD_BEGINS and begins[i] != query[0]:
                    continue
            chosen[n_hopeful] = i
            n_hopeful += 1
        letters[0] = _touch(names, offsets, chosen[:n_hopeful])  # else every name is waited for in turn
        for i in chosen[:n_hopeful]:
            length = _fold(names, offsets[i], offsets[i + 1], folds, letters)
            cost = _cost(letters, length, query, errors, places, rows)
            if cost > costs[k - 1] or (cost == costs[k - 1] and (ids[k - 1] < 0 or weights[i] <= weights[ids[k - 1]])):
                continue
            at = k - 1
            while at > 0 and (costs[at - 1] > cost or (costs[at - 1] == cost and weights[ids[at - 1]] < weights[i])):
                costs[at], ids[at] = costs[at - 1], ids[at - 1]
                at -= 1
            costs[at], ids[at] = cost, i


@njit(cache=True, nogil=True)
def _choose(
    bits: NDArray[np.uint64], sets: NDArray[np.uint32], wanted: NDArray[np.uint64], begin: NDArray[np.uint64],
    letter_set: Any, pairs: Bytes, errors: Any, missing: Any, first: Any, last: Any, chosen: NDArray[np.int64],
) -> Any:  # fmt: skip
    """Fill `chosen` with the names that may match, by their bits, and return their number."""
    count = 0
    for i in range(first, last):
        absent_low, absent_high = wanted[0] & ~bits[i, 0], wanted[1] & ~bits[i, 1]
        if missing == 0:
            if (absent_low | absent_high) != np.uint64(0):
                continue
        else:
            if ((begin[0] & absent_low) | (begin[1] & absent_high)) != np.uint64(0):
                continue
            if _count_bits(absent_low) + _count_bits(absent_high) > missing:
                continue
            if _count_bits(np.uint64(letter_set & ~sets[i])) > errors:  # an error loses one letter at most
                continue
            if not _explained(pairs, bits[i, 0], bits[i, 1], errors):
                continue
        chosen[count] = i
        count += 1
    return count


@njit(cache=True, nogil=True)
def _pair_places(query: Bytes) -> Bytes:
    """Return (m, 2): the bit of each pair of the query, and the bit of the pair that swapped letters would give."""
    pairs, before = np.zeros((query.size, 2), np.uint8), _GAP
    for j in range(query.size):
        pairs[j, 0] = _place(before, query[j])
        pairs[j, 1] = _place(query[min(j + 1, query.size - 1)], query[j])
        before = query[j]
    return pairs


@njit(cache=True, nogil=True)
def _explained(pairs: Bytes, low: Any, high: Any, errors: Any) -> bool:
    """Return whether so few errors can be the reason for all missing pairs.

    A wrong, missing or additional letter changes two neighboring pairs at most, a swap three.
    """
    j, left = 0, errors
    while j < len(pairs):
        if _has(low, high, pairs[j, 0]):
            j += 1
        elif left == 0:
            return False
        else:
            left -= 1
            j += 3 if _has(low, high, pairs[j, 1]) else 2
    return True


@njit(cache=True, nogil=True, inline="always")
def _has(low: Any, high: Any, place: Any) -> bool:
    word = low if place < 64 else high
    return (word >> np.uint64(place & 63)) & np.uint64(1) != np.uint64(0)


@njit(cache=True, nogil=True)
def _touch(names: Bytes, offsets: Offsets, chosen: NDArray[np.int64]) -> Any:
    """Load names into the cache, many at a time; the sum of their letters keeps the compiler from leaving it out."""
    total = np.uint8(0)
    for i in chosen:
        if offsets[i + 1] > offsets[i]:
            total += names[offsets[i]] + names[offsets[i + 1] - 1]
    return total


@njit(cache=True, nogil=True)
def _cost(
    letters: Bytes, length: Any, query: Bytes, errors: Any, places: NDArray[np.uint64], rows: NDArray[np.int64]
) -> Any:
    """Return the cost of the best match at the beginning of the name or of one of its words, or _NO_MATCH."""
    best = _NO_MATCH
    for start in range(length):
        if start > 0 and letters[start - 1] != _GAP:
            continue
        if not _may_begin(letters, start, length, query, errors):
            continue
        place = _BEGINS if start == 0 else _WORD_BEGINS
        if errors == 0:
            same = 0
            while same < query.size and start + same < length and letters[start + same] == query[same]:
                same += 1
            if same < query.size:
                continue
            whole = start == 0 and length == query.size
            best = min(best, 0 if whole else place)
        else:
            if query.size <= _WORD:
                found = _fast_distance(letters, start, length, query.size, errors, places)
            else:
                found = _distance(letters, start, length, query, errors, rows)
            if found <= errors:
                best = min(best, found * _PER_ERROR + place)
        if best <= _BEGINS:
            break
    return best


@njit(cache=True, nogil=True)
def _may_begin(letters: Bytes, start: Any, length: Any, query: Bytes, errors: Any) -> bool:
    """Whether a word begins like the query. Two errors in its first two letters are not found."""
    if letters[start] == query[0]:
        return True
    if errors == 0 or query.size < _TRUST_BEGINNING:
        return False
    if letters[start] == query[1]:
        return True
    return start + 1 < length and (letters[start + 1] == query[0] or letters[start + 1] == query[1])


@njit(cache=True, nogil=True)
def _fast_distance(letters: Bytes, start: Any, length: Any, m: Any, limit: Any, places: NDArray[np.uint64]) -> Any:
    """Return `_distance` of a query with m letters, up to 64, a column of the table in one word (Hyyrö 2003).

    places (256,): bit j of places[c] tells whether letter j of the query is c.
    """
    one = np.uint64(1)
    last = one << np.uint64(m - 1)
    up, down, diagonal, before = ~np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0)
    distance = best = m
    for i in range(min(length - start, m + limit)):
        here = places[letters[start + i]]
        swapped = ((~diagonal & here) << one) & before
        diagonal = (((here & up) + up) ^ up) | here | down | swapped
        more, less = down | ~(diagonal | up), diagonal & up
        if more & last:
            distance += 1
        elif less & last:
            distance -= 1
            best = min(best, distance)
        more, less = (more << one) | one, less << one
        up, down, before = less | ~(diagonal | more), more & diagonal, here
    return best


@njit(cache=True, nogil=True)
def _distance(letters: Bytes, start: Any, length: Any, query: Bytes, limit: Any, rows: NDArray[np.int64]) -> Any:
    """Return the smallest edit distance of the query to a beginning of letters[start:], swaps counting as one.

    Any number beyond the limit means that it is larger.
    """
    two_before, before, row = rows[0], rows[1], rows[2]
    m = query.size
    for j in range(m + 1):
        before[j] = j
        two_before[j] = j
    best = before[m]
    for i in range(min(length - start, m + limit)):
        letter = letters[start + i]
        row[0] = i + 1
        smallest = row[0]
        for j in range(m):
            value = min(before[j] + (letter != query[j]), before[j + 1] + 1, row[j] + 1)
            if i > 0 and j > 0 and letter == query[j - 1] and letters[start + i - 1] == query[j]:
                value = min(value, two_before[j - 1] + 1)
            row[j + 1] = value
            smallest = min(smallest, value)
        best = min(best, row[m])
        if smallest > limit:
            break
        two_before, before, row = before, row, two_before
    return best
