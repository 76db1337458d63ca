"""Beyond one split: coverage, its spread over seeds and mean width of one split, folds and merged splits.

    python benchmarks/cross_conformal.py 40 16     (size, seeds)

The paper's setting: Ising missingness of strength 1/15, adversarial noise, 90 % asked. Over data sets everything is
drawn anew with the seed; over splits one data set is split anew. The error of a standard deviation over k seeds is
about 1 / sqrt(2 (k - 1)) of it.
"""

from __future__ import annotations

import sys

import numpy as np

import corten
from corten import metrics, simulate

CALIBRATIONS = {
    "one split": "random",
    "five folds": corten.CrossConformal(5),
    "five splits merged": corten.RepeatedSplits(5),
}


def measured(setting: simulate.PaperSetting, calibration: object, seed: int) -> tuple[float, float]:
    """Coverage and mean finite width at 90 %."""
    completer = corten.ConformalCompleter(
        corten.TuckerCompletion(rank=3), corten.IsingPropensity(coupling=1 / 15, rank=3), calibration, seed=seed
    )
    result = completer.fit(setting.observed).intervals(0.9)
    return metrics.coverage(setting.data, result), metrics.width(result)


def main(size: int, seeds: int) -> None:
    print(f"{seeds} seeds at {size}^3\n")
    print("| over | calibration | coverage | its standard deviation | against one split | mean width |")
    print("|---|---|---|---|---|---|")
    for over in ("data sets", "splits of one data set"):
        found = []
        for seed in range(seeds):
            setting = simulate.paper_setting(size, 3, seed=seed if over == "data sets" else 0)
            found.append([measured(setting, one, seed) for one in CALIBRATIONS.values()])
        table = np.array(found)
        spread = 100 * table[:, :, 0].std(axis=0, ddof=1)
        for k, name in enumerate(CALIBRATIONS):
            share, width = 100 * table[:, k, 0].mean(), table[:, k, 1].mean()
            change = "" if k == 0 else f"{spread[k] / spread[0] - 1:+.0%}"
            print(f"| {over} | {name} | {share:.1f} % | {spread[k]:.2f} | {change} | {width:.3f} |", flush=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:3]) if len(sys.argv) > 2 else (40, 16))
