"""Graphs with a plan: what is held out follows from what is there, if a model can express it."""

from __future__ import annotations

import numpy as np

from grash.data.dataset import Dataset


def circle(n: int = 40, shifts: tuple[int, ...] = (1, 2, 3, 5, 8)) -> Dataset:
    """i → i + s mod n for each shift: rotations."""
    return _split([(i, r, (i + s) % n) for r, s in enumerate(shifts) for i in range(n)], n, len(shifts), "circle")


def grid(side: int = 9) -> Dataset:
    """Points of a square grid, each step right, up, diagonally, by two: translations."""
    steps = ((1, 0), (0, 1), (1, 1), (2, 0), (1, -1))
    triples = [
        (x * side + y, r, (x + dx) * side + y + dy)
        for r, (dx, dy) in enumerate(steps)
        for x in range(side)
        for y in range(side)
        if 0 <= x + dx < side and 0 <= y + dy < side
    ]
    return _split(triples, side * side, len(steps), "grid")


def classes(a: int = 6, b: int = 7) -> Dataset:
    """Entities (x, y); relation 0 joins equal x, relation 1 equal y: symmetric relations."""
    n = a * b
    triples = [(i, 0, j) for i in range(n) for j in range(n) if i != j and i // b == j // b]
    triples += [(i, 1, j) for i in range(n) for j in range(n) if i != j and i % b == j % b]
    return _split(triples, n, 2, "classes")


def _split(triples: list[tuple[int, int, int]], n_entities: int, n_relations: int, name: str) -> Dataset:
    """A tenth for valid and a tenth for test."""
    shuffled = np.random.default_rng(0).permutation(np.array(triples, np.int32))
    tenth = len(shuffled) // 10
    parts = np.split(shuffled, [len(shuffled) - 2 * tenth, len(shuffled) - tenth])
    return Dataset(*(np.ascontiguousarray(p) for p in parts), n_entities, n_relations, name=name)
