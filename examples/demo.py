"""Search the bundled graph, train the winner and query it. `make demo` runs this in about two minutes.

Every step is a `grash` command that is shown before it runs. The search is kept in runs/demo.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path

import grash
from grash.cli import main

RUN = "runs/demo"
SEARCH = "--model complex --dim 64 --epochs 40 --n-trials 16"


def run(line: str) -> None:
    """Show a command as you would type it, and run it."""
    print(f"\n\033[1m$ grash {line}\033[0m" if sys.stdout.isatty() else f"\n$ grash {line}", flush=True)
    code = main(shlex.split(line))
    if code:
        sys.exit(code)


def show_held_out(model: grash.Model, relation: str, count: int) -> None:
    """Print questions from the test split with the best three answers and the true one."""
    data = model.dataset
    seen = {(h, r) for h, r, _ in data.train.tolist()}
    wanted = model.relation_id(relation)
    questions = [(h, t) for h, r, t in data.test.tolist() if r == wanted and (h, r) not in seen]
    for head, tail in questions[:count]:
        answers = model.predict(head_id=head, relation=relation, k=3)
        marks = [f"[{a.name}]" if a.id == tail else a.name for a in answers]
        print(f"  {model.entity_name(head)} {relation} ?  {', '.join(marks)}  (true: {model.entity_name(tail)})")


def demo() -> None:
    started = time.monotonic()
    shutil.rmtree(RUN, ignore_errors=True)
    print("1. Look at a graph. `world` comes with grash: countries, cities, languages, currencies, time zones.")
    run("describe world")
    print("\n2. Search. Round 1 trains 16 configurations briefly on a subgraph, round 2 trains the best 4 for longer,")
    print("   and the winner is trained on the whole graph.")
    run(f"search world {SEARCH} -o {RUN}")
    run(f"status {RUN}")
    print("\n3. Query the model. `known` marks answers that are in the graph; all others are predictions.")
    run(f"predict {RUN}/model --head Austria --relation neighbour_of -k 8")
    run(f"predict {RUN}/model --head Peru --relation speaks -k 5")
    run(f"predict {RUN}/model --relation uses_currency --tail Euro -k 5 --new-only")
    print("\n4. Check predictions on test triples, which training has not seen. The true answer is in [brackets] if it")
    print("   is among the best three.\n")
    model = grash.load_model(f"{RUN}/model", device="cpu")
    for relation in ("in_continent", "located_in", "uses_currency", "written_in"):
        show_held_out(model, relation, 3)
    report = Path(RUN, "report.html").resolve()
    print(
        f"\nDone in {time.monotonic() - started:.0f} s. To see every trial of the search, open {report} in a browser."
    )
    print(f"The model is in {RUN}/model: query it with `grash predict`. To search your own graph: grash search FILE.")


if __name__ == "__main__":
    demo()
