"""Compare the probabilities of trained models with what was right: calibrated on valid, measured on valid and test.

    python benchmarks/check_calibration.py MODEL_FOLDER … [-o FILE]

Prints for each model the expected calibration error and the log loss of first answers and of the first ten. Those of
valid are cross-fitted. Run it with the code before and after a change, on the same model folders.
"""

import argparse
import json
from pathlib import Path
from unittest.mock import patch

import numpy as np

import grash
from grash.evaluation.calibration import Reliability


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    for folder in given.models:
        model = grash.load_model(folder)
        with patch.object(Reliability, "of", wraps=Reliability.of) as of:  # receives all probabilities
            model.calibrate(seed=model.config.seed)
            model.measure_calibration("test")
        row: dict[str, object] = {"model": folder.name, "temperature": model.calibration.temperature}
        names = ("valid, first", "valid, ten", "test, first", "test, ten")
        for name, call in zip(names, of.call_args_list, strict=True):
            row[name] = numbers(*call.args)
        print(json.dumps(row), flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def numbers(probabilities: np.ndarray, right: np.ndarray) -> dict[str, float]:
    chances = np.clip(np.where(right, probabilities, 1 - probabilities), 1e-9, 1)
    found = {"right": right.mean(), "mean": probabilities.mean(), "ece": Reliability.of(probabilities, right).ece,
             "log_loss": -np.log(chances).mean()}  # fmt: skip
    return {"n": len(right)} | {name: round(float(value), 4) for name, value in found.items()}


if __name__ == "__main__":
    main()
