"""What pages of comparisons say in words: what their figures mean, what they cannot say, and what each change is.

Goes to methods_page.py.
"""

from __future__ import annotations

from collections.abc import Iterable

_PENALTIES = "penalties are those of the table's trainings, scaled with the graph except in the `paper` space"
NOTES = f"""\
- *Test MRR*: of the pick, trained in full, in the mean over seeds. *Of its best*: the same over that of the best
  configuration that the method began with. *Gain*: less the reference's. *Better, worse*: shares of the seeds.
- A dash instead of figures: the budget pays for no training of the method.
- *Different picks*: how many configurations were picked over all seeds.
- *Best left*: the best configuration still in the race at each round or stage, over the best that it began with; where
  it falls, the best was lost.
- The last two rows train all n of the reference in full. A best by test MRR is chosen on the noise of the test triples,
  and no search can have it; a best by validation is what choosing without any reduction would come to.
- All methods draw from the pool at random first, GraSH's default too: what `--proposals portfolio` adds is not in it.
- Methods that propose choose among members of the pool instead of the whole space, which takes from their reach.
- Subgraphs are cut by the chain: whole cores (`--preset paper`), walks (KGTuner, AutoNE), warm starts and a price by
  scores are not judged here, nor is noise, since each training was made once. The final training of the pick is outside
  the budget of all. In every row, the default's too, {_PENALTIES}."""
PAPER = (
    "Rows *paper's rules, chain (…)* take the rounds of the paper (no rails, carry or trend), but on a table graphs "
    "are cut along the chain instead of whole cores, and negatives and the validation split are the default's; "
    f"{_PENALTIES}."
)
_LEGEND = (
    (("n =",), "*n*: configurations of the first round (64 in the default)."),
    (("η =",), "*η*: of so many one goes on (4 in the default)."),
    (("trend",), "*trend*: that part of a trial's rise, from half of its epochs to all, is added to its score (1/2)."),
    (("rail",), "*rails*: the least of entities, validation triples and epochs that a round may have; *at … entities*: "
                "another least; *never take the whole graph*: not even where that least is most of it."),
    (("carry",), "*carry*: what a round has not spent goes to the next."),
    (("variant",), "*variant*: what is reduced; epochs alone, the graph alone, or both (`combined`, the default)."),
    (("portfolio",), "*portfolio*: the members nearest to the portfolio's proposals enter, instead of random ones."),
    (("second wave",), "*second wave of 1/4*: so many of the first round's configurations are not drawn but proposed, "
                       "by a model of the others' scores; *in eights*: eight at a time; *epoch*: with that variant."),
    (("laboratory",), "*laboratory*: halving written anew for what the search does not know, here with the same rules; "
                      "the rows after it are changes of it."),
    (("ties",), "*ties*: those within so many standard errors of the last place go on too, up to twice the places."),
    (("g = f^",), "*g = f^x*: a fidelity f takes f^x of the graph and the rest from the epochs; 0 is epochs alone, 1/2 "
                  "what `combined` does."),
    (("cold", "continued"), "*cold, continued*: survivors begin anew in the next round, or go on from their weights "
                            "and pay for what is added."),
    (("in epochs",), "*… in epochs*: these rounds reduce epochs alone, the others both."),
    (("shares",), "*shares a:b:c*: how the budget is divided among the rounds (equally in the default)."),
    (("rounds of",), "*rounds of …*: how many trials each round has (64, 16, 4 in the default)."),
)  # fmt: skip


def caveat(n: str, seeds: int) -> str:
    """What so many seeds are not. n: how many configurations a table's pool has, in words."""
    return (
        f"All seeds on a table draw from one pool of {n} configurations, each trained once: {seeds:,} seeds are not "
        f"{seeds:,} independent graphs, pools or trainings, and the intervals (95 %, over seeds) say nothing about "
        f"others; a method that draws most of the pool differs little between seeds."
    )


def legend(names: Iterable[str]) -> str:
    """A line for every word that names of changes have; nothing where they have none."""
    found = " ".join(names)
    return "\n".join(f"- {line}" for words, line in _LEGEND if any(word in found for word in words))
