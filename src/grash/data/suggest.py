"""Which names one may have meant: a scan over all names for near misses. Used by vocabulary.py.

The price of a name, in tenths of a typing error (ASCII case is free): the edit distance where it is small;
a bit more than one error for a name that ends in the query after a separator (the last part of an IRI); more
than that, and growing with the length of the rest, for a name that begins with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from grash.data.words import Whole

_ERROR, _IRI_END, _BEGINNING = 10, 12, 14
_FAR = 1 << 30
_MAX_DISTANCE = 4


def nearest_names(
    names: NDArray[np.uint8], offsets: NDArray[np.int64], query: NDArray[np.uint8], k: int
) -> NDArray[np.int64]:
    """The ids of up to k names with the lowest price for a query (bytes), best first, then by id.

    O(bytes of all names), most of them left after their first bytes.
    """
    if k < 1 or len(query) == 0:
        return np.empty(0, np.int64)
    prices = np.full(k, _FAR, np.int64)
    ids = np.full(k, -1, np.int64)
    _scan(names, offsets, _lowered(query), min(_MAX_DISTANCE, max(1, len(query) // 3)), prices, ids)
    return ids[prices < _FAR]


def _lowered(query: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.frombuffer(query.tobytes().lower(), np.uint8)


@njit(cache=True, nogil=True)
def _scan(
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    query: NDArray[np.uint8],
    limit: Whole,
    prices: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> None:
    """Keeps the lowest prices, sorted."""
    rows = np.empty((2, 2 * limit + 1), np.int64)
    k = prices.size
    for i in range(offsets.size - 1):
        price = _price(names, offsets[i], offsets[i + 1], query, limit, rows)
        if price >= prices[k - 1]:
            continue
        at = k - 1
        while at > 0 and prices[at - 1] > price:
            prices[at], ids[at] = prices[at - 1], ids[at - 1]
            at -= 1
        prices[at], ids[at] = price, i


@njit(cache=True, nogil=True)
def _price(
    names: NDArray[np.uint8],
    start: Whole,
    stop: Whole,
    query: NDArray[np.uint8],
    limit: Whole,
    rows: NDArray[np.int64],
) -> Whole:
    length, wanted = stop - start, query.size
    same = 0  # length of the common beginning
    while same < min(length, wanted) and _lower(names[start + same]) == query[same]:
        same += 1
    if same == wanted:
        if length == wanted:
            return 0
        beginning = _BEGINNING + min(length - wanted, 20 * _ERROR)
        return min(beginning, (length - wanted) * _ERROR) if length - wanted <= limit else beginning
    tail = 0  # length of the common end of what is left
    while tail < min(length, wanted) - same and _lower(names[stop - 1 - tail]) == query[wanted - 1 - tail]:
        tail += 1
    if tail == wanted and _is_separator(names[stop - 1 - tail]):
        return _IRI_END
    if abs(length - wanted) > limit:
        return _FAR
    left, right = length - same - tail, wanted - same - tail
    distance = _bounded_distance(names, start + same, left, query, same, right, limit, rows)
    return distance * _ERROR if distance <= limit else _FAR


@njit(cache=True, nogil=True)
def _bounded_distance(
    a: NDArray[np.uint8],
    a_start: Whole,
    n: Whole,
    b: NDArray[np.uint8],
    b_start: Whole,
    m: Whole,
    limit: Whole,
    rows: NDArray[np.int64],
) -> Whole:
    """The edit distance of a[a_start:][:n] and b[b_start:][:m], or limit + 1 if it is larger.

    Only the cells within `limit` of the diagonal are computed: column j of row i stands at j - i + limit.
    """
    if n == 0 or m == 0:
        return max(n, m)
    width = 2 * limit + 1
    above, here = rows[0], rows[1]
    for at in range(width):
        above[at] = at - limit if at >= limit else limit + 1
    for i in range(1, n + 1):
        best = limit + 1
        for at in range(width):
            j = i + at - limit
            value = limit + 1
            if j == 0:
                value = i
            elif 0 < j <= m:
                value = above[at] + (_lower(a[a_start + i - 1]) != b[b_start + j - 1])
                if at + 1 < width:
                    value = min(value, above[at + 1] + 1)
                if at > 0:
                    value = min(value, here[at - 1] + 1)
            here[at] = min(value, limit + 1)
            best = min(best, here[at])
        if best > limit:
            return limit + 1
        above, here = here, above
    return above[m - n + limit]


@njit(cache=True, nogil=True)
def _lower(byte: Any) -> Any:
    return byte + 32 if 65 <= byte <= 90 else np.int64(byte)


@njit(cache=True, nogil=True)
def _is_separator(byte: Any) -> bool:
    return byte == 47 or byte == 35 or byte == 58 or byte == 95  # / # : _
