"""The main job on the bundled graph: describe, train, evaluate, ask. `make demo` runs it, in about a minute.

Every step is a command of the `grash` command line, shown before it runs; the model stays in runs/demo.
"""

from __future__ import annotations

import shlex
import sys
import time

import grash
from grash.cli import main

MODEL = "runs/demo"
TRAIN = (
    "--model complex --dim 128 --training 1vsall --reciprocal --penalty n3 --penalty-weight 0.1 "
    "--batch-size 256 --epochs 60 --valid-every 10 --overwrite --restart"
)


def run(line: str, *, note: str = "") -> None:
    """Shows a command as one would type it, and runs it."""
    print(f"\n\033[1m$ grash {line}\033[0m" if sys.stdout.isatty() else f"\n$ grash {line}", flush=True)
    code = main(shlex.split(line))
    if code:
        sys.exit(code)
    if note:
        print(f"\n{note}")


def show_held_out(model: grash.Model, relation: str, count: int) -> None:
    """Questions from the test split, which training has not seen: the best new answers, and the true one."""
    data = model.dataset
    seen = {(h, r) for h, r, _ in data.train.tolist()}
    wanted = model.relation_id(relation)
    questions = [(h, r, t) for h, r, t in data.test.tolist() if r == wanted and (h, r) not in seen]
    for head, _, tail in questions[:count]:
        answers = model.predict(head=head, relation=relation, k=3)
        marks = [f"[{a.name}]" if a.id == tail else a.name for a in answers]
        print(f"  {model.entity_name(head)} {relation} ?  {', '.join(marks)}  (true: {model.entity_name(tail)})")


def demo() -> None:
    started = time.monotonic()
    print("A graph of the world comes with grash: countries, cities, languages, currencies, time zones.")
    run("describe world")
    run(f"train world -o {MODEL} {TRAIN}")
    run(f"predict {MODEL} --head Austria --relation neighbour_of -k 8")
    run(f"predict {MODEL} --head Peru --relation speaks -k 5")
    run(f"predict {MODEL} --relation uses_currency --tail Euro -k 5 --new-only")
    run(f"predict {MODEL} --head Kenya --tail Tanzania -k 3")
    run(f"neighbours {MODEL} Norway -k 6")
    print("\nFacts that were held out of training; the true answer stands in [brackets] where it is among the best:\n")
    model = grash.load_model(MODEL, device="cpu")
    for relation in ("in_continent", "located_in", "uses_currency", "written_in"):
        show_held_out(model, relation, 3)
    print(f"\nDone in {time.monotonic() - started:.0f} s. The model is in {MODEL}; ask it more with `grash predict`.")


if __name__ == "__main__":
    demo()
