"""Train the published configurations of examples/published side by side on one device, and rank the test set.

    python benchmarks/replay_published.py DATA [NAME …] [--seconds 540] [--symmetric] [--out runs/replay]

DATA holds a folder per graph (fb15k-237, wn18rr) in any format that grash reads. Every training is a separate process
with a checkpoint. At the deadline all are interrupted, and the same command resumes them. `--symmetric` draws uniform
initial values from (−a, a) instead of (a, 1). Prints a table; records: benchmarks/records/.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PUBLISHED = {
    "codex-s-rescal": 0.404,
    "fb15k-237-complex": 0.348,
    "fb15k-237-complex_relations": 0.388,
    "fb15k-237-distmult": 0.343,
    "fb15k-237-rescal": 0.356,
    "fb15k-237-transe": 0.313,
    "wn18rr-complex": 0.475,
    "wn18rr-distmult": 0.452,
    "wn18rr-rescal": 0.467,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", help="NAME or NAME:symmetric or NAME:setting=value,setting=value")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--out", type=Path, default=Path("runs/replay"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--one", action="store_true", help="run one here (used by the driver)")
    args = parser.parse_args()
    if args.one:
        run_one(args.data, args.names[0], args.out, args.device)
        return
    names = args.names or list(PUBLISHED)
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.seconds
    running = {}
    for name in names:
        command = [sys.executable, __file__, str(args.data), name, "--one", "--out", str(args.out)]
        log = (args.out / f"{folder_of(name)}.log").open("a")
        running[name] = subprocess.Popen(
            [*command, "--device", args.device], stdout=log, stderr=subprocess.STDOUT, cwd=ROOT
        )
    while any(p.poll() is None for p in running.values()) and time.monotonic() < deadline:
        time.sleep(1)
    for process in running.values():
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in running.values():
        process.wait()
    for name in names:
        print(line(args.out, name))


def folder_of(name: str) -> str:
    return name.replace(":", "--").replace("=", "-").replace(",", "-")


def run_one(data: Path, name: str, out: Path, device: str) -> None:
    sys.path.insert(0, str(ROOT / "src"))
    import yaml

    from grash.data.load import load_dataset
    from grash.engines.trainer import run_training
    from grash.evaluation.evaluate import evaluate
    from grash.training.config import read_config

    base, _, changes = name.partition(":")
    config = read_config(ROOT / "examples" / "published" / f"{base}.yaml")
    if changes == "symmetric":
        config = config.changed(init_high=-config.init_low)
    elif changes:
        config = config.changed(**{k: yaml.safe_load(v) for k, v in (c.split("=") for c in changes.split(","))})
    dataset = load_dataset(data / base.rsplit("-", 1)[0])
    target = out / f"{folder_of(name)}.json"
    printed = [0.0]

    def watch(progress: object) -> None:
        if time.monotonic() - printed[0] > 20:
            printed[0] = time.monotonic()
            print(progress, flush=True)
            target.with_suffix(".progress").write_text(str(progress))

    if target.exists():
        return
    try:
        outcome = run_training(
            dataset, config, device=device, checkpoint=out / f"{folder_of(name)}.checkpoint", watch=watch
        )
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return
    result = evaluate(outcome.model, dataset).to_dict()
    result.pop("per_relation")
    best = outcome.best_validation
    result["steps"], result["seconds"] = outcome.step, outcome.seconds
    result["best_valid"] = [best.mrr, best.epoch] if best else None
    result["history"] = [[v.epoch, v.mrr, v.loss, v.lr] for v in outcome.history]
    target.write_text(json.dumps(result))


def line(out: Path, name: str) -> str:
    base = name.partition(":")[0]
    path = out / f"{folder_of(name)}.json"
    if path.exists():
        r = json.loads(path.read_text())
        both = r["both"]
        low, high = r["mrr_interval"]
        return (
            f"{name:40s} published {PUBLISHED[base]:.3f}  test MRR {both['mrr']:.4f} [{low:.3f}, {high:.3f}] "
            f"H@1 {both['hits@1']:.3f} H@10 {both['hits@10']:.3f}  best valid {r['best_valid'][0]:.4f} at epoch "
            f"{r['best_valid'][1]:.0f}, stopped at {r['history'][-1][0]:.0f}, {r['steps']} steps, {r['seconds']:.0f} s"
        )
    progress = path.with_suffix(".progress")
    log = (out / f"{folder_of(name)}.log").read_text().strip().splitlines()
    return f"{name:40s} not finished: {progress.read_text() if progress.exists() else ''} {log[-1] if log else ''}"


if __name__ == "__main__":
    main()
