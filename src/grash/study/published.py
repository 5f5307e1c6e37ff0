"""What others report on graphs with a published split, and what our default search is to reach: beside our own numbers.

Goes to confirm_page.py. Test triples, filtered with train, valid and test, all entities as candidates; where a source
gives no more digits, there are none. dim counts floats per entity (a complex number has two); None: not stated there.
"""

from __future__ import annotations

from dataclasses import dataclass

from grash.search.portfolio import shipped_winners

LIBKGE = "LibKGE, its README"
SEARCHED = "LibKGE, 200 trials trained in full (Ruffinelli et al., 2020)"
CODEX = "LibKGE (Safavi and Koutra, 2020)"
KGTUNER = "KGTuner (Zhang et al., 2022)"
ROTATE = "RotatE's authors (Sun et al., 2019)"
N3 = "1vsAll with N3 (Lacroix et al., 2018)"
RELATIONS = "N3 and relation prediction (Chen et al., 2021)"
WITHOUT = "N3 without relation prediction (Chen et al., 2021)"
GRASH = "GraSH, combined (Kochsiek et al., 2022)"
SELF_ADVERSARIAL = "GraSH with a self-adversarial loss"


@dataclass(frozen=True)
class Figure:
    """A reported result: MRR and Hits@1, 3, 10, None where they were not given."""

    source: str
    dim: int | None
    mrr: float
    hits1: float | None = None
    hits3: float | None = None
    hits10: float | None = None


PUBLISHED: dict[str, dict[str, tuple[Figure, ...]]] = {
    "fb15k237": {
        "complex": (
            Figure(SEARCHED, 256, 0.348, 0.253, 0.384, 0.536),
            Figure(KGTUNER, 2000, 0.352, 0.263, None, 0.530),
            Figure(N3, 200, 0.35, 0.26, 0.39, 0.54),
            Figure(N3, 2000, 0.37, 0.27, 0.40, 0.56),
            Figure(RELATIONS, 2000, 0.388, 0.298, 0.425, 0.568),
        ),
        "rotate": (
            Figure(LIBKGE, None, 0.333, 0.240, 0.368, 0.522),
            Figure(KGTUNER, 2000, 0.338, 0.243, None, 0.527),
            Figure(ROTATE, 2000, 0.337, 0.241, 0.375, 0.533),
        ),
        "transe": (
            Figure(LIBKGE, None, 0.313, 0.221, 0.347, 0.497),
            Figure(KGTUNER, 1000, 0.327, 0.228, None, 0.522),
        ),
    },
    "wn18rr": {
        "complex": (
            Figure(SEARCHED, 128, 0.475, 0.438, 0.490, 0.547),
            Figure(KGTUNER, 2000, 0.484, 0.440, None, 0.562),
            Figure(N3, 200, 0.47, 0.43, None, 0.56),
            Figure(N3, 4000, 0.49, 0.44, None, 0.58),
            Figure(RELATIONS, 2000, 0.488, 0.443, None, 0.578),
        ),
        "rotate": (
            Figure(LIBKGE, None, 0.478, 0.439, 0.494, 0.553),
            Figure(KGTUNER, 1000, 0.480, 0.427, None, 0.582),
        ),
        "transe": (Figure(LIBKGE, 512, 0.228, 0.053, 0.368, 0.520), Figure(KGTUNER, None, 0.233)),
    },
    "codexs": {
        "complex": (
            Figure(CODEX, 512, 0.465, 0.372, None, 0.646),
            Figure(WITHOUT, 2000, 0.472),
            Figure(RELATIONS, 2000, 0.473),
        ),
        "transe": (Figure(CODEX, 512, 0.354, 0.219, None, 0.634),),
    },
    "yago310": {
        "complex": (
            Figure(GRASH, 128, 0.528, 0.455, None, 0.660),
            Figure(GRASH, 512, 0.552),
            Figure(LIBKGE, 128, 0.551, 0.476, 0.596, 0.682),
            Figure(N3, 2000, 0.58, 0.50, 0.62, 0.71),
        ),
        "rotate": (Figure(GRASH, 512, 0.453), Figure(SELF_ADVERSARIAL, 512, 0.494)),
        "transe": (Figure(GRASH, 128, 0.499, 0.406, None, 0.661),),
    },
}  # fmt: skip
GOALS: dict[str, dict[str, float]] = {  # test MRR of one default search at B = 3, d ≤ 512
    "fb15k237": {"complex": 0.355, "rotate": 0.338, "transe": 0.327},
    "wn18rr": {"complex": 0.484, "rotate": 0.480, "transe": 0.233},
    "codexs": {"complex": 0.470},
}


def figures(dataset: str, model: str) -> tuple[Figure, ...]:
    """What is reported for a graph by its name, however that is written; nothing where we know of nothing."""
    return PUBLISHED.get(_plain(dataset), {}).get(model, ())


def goal(dataset: str, model: str) -> float | None:
    """The test MRR that a default search is to reach there."""
    return GOALS.get(_plain(dataset), {}).get(model)


def is_of(origin: str, dataset: str) -> bool:
    """Whether a configuration's origin is a published winner of this very graph, which the portfolio proposes."""
    return origin.startswith("portfolio:") and bool(_plain(dataset)) and _plain(dataset) in _plain(origin)


def known_before(origin: str, dataset: str) -> str:
    """What of this graph was in a pick before the search began, in words; nothing where it came without."""
    here, family = _plain(dataset), _family(dataset)
    if is_of(origin, dataset):
        return "winner of this graph"
    if origin.startswith("portfolio:"):
        alike = family != here and family in _plain(origin)
        return "winner of a sibling" if alike else "winner of another graph"
    if origin != "prior":
        return ""
    fitted = {_plain(w["dataset"]) for w in shipped_winners()}
    near = here in fitted or (family != here and any(name.startswith(family) for name in fitted))
    return "prior, fitted here too" if near else "prior"


def _family(dataset: str) -> str:
    """What a graph shares its entities and relations with: CoDEx comes in three sizes."""
    name = _plain(dataset)
    return "codex" if name in ("codexs", "codexm", "codexl") else name


def _plain(name: str) -> str:
    """FB15k-237 and fb15k_237 alike."""
    return "".join(c for c in name.lower() if c.isalnum())
