"""Beyond one split: coverage, its spread over seeds and mean width of one split, folds and merged splits.

    python benchmarks/cross_conformal.py 40 16 0     (size, seeds, first seed)

The paper's setting: Ising missingness of strength 1/15, adversarial noise, 90 % asked. Over data sets everything is
drawn anew with the seed; over splits one data set is split anew. The error of a standard deviation over k seeds is
about 1 / sqrt(2 (k - 1)) of it.

Width at equal coverage: every fit is asked for levels from 85 to 95 %, each way of calibrating is then read at the
level at which its mean coverage over the seeds is 90 %, straight between two levels, and its mean width there is
divided by that of one split. The error of the ratio is a jackknife over seeds, levels found anew each time, so that it
is paired and holds the error of the levels.
"""

from __future__ import annotations

import sys

import numpy as np

import corten
from corten import simulate
from corten.evidence import metrics

CALIBRATIONS = {
    "one split": "random",
    "five folds": corten.CrossCalibration(5),
    "five splits merged": corten.RepeatedSplits(5),
}
ASKED = 0.9
LEVELS = np.array([0.85, 0.88, 0.9, 0.92, 0.95])


def measured(setting: simulate.PaperSetting, calibration: object, seed: int) -> np.ndarray:
    """Coverage and mean finite width at every level, (levels, 2)."""
    completer = corten.ConformalCompleter(
        corten.TuckerCompletion(rank=3), corten.IsingPropensity(coupling=1 / 15, rank=3), calibration, seed=seed
    )
    results = completer.fit(setting.observed).intervals(LEVELS.tolist())
    return np.array([(metrics.coverage(setting.data, one), metrics.width(one)) for one in results])


def widths_at_equal_coverage(table: np.ndarray) -> np.ndarray:
    """Mean width of each way of calibrating where its mean coverage is 90 %, from (seeds, ways, levels, 2)."""
    share, width = table[..., 0].mean(axis=0), table[..., 1].mean(axis=0)
    if (share.min(axis=1) > ASKED).any() or (share.max(axis=1) < ASKED).any():
        return np.full(share.shape[0], np.nan)
    return np.array([np.interp(ASKED, *pair) for pair in zip(share, width, strict=True)])


def against_one_split(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Widths at equal coverage against one split's, and the jackknife's standard errors."""
    widths = widths_at_equal_coverage(table)
    left_out = np.array([widths_at_equal_coverage(np.delete(table, k, axis=0)) for k in range(len(table))])
    ratios = left_out / left_out[:, :1]
    error = np.sqrt((len(table) - 1) * ratios.var(axis=0))
    return widths / widths[0], error


def rows(over: str, table: np.ndarray) -> list[str]:
    """The lines of one table, (seeds, ways, levels, 2)."""
    asked = table[:, :, int(np.flatnonzero(np.isclose(LEVELS, ASKED))[0])]
    spread, wide = 100 * asked[..., 0].std(axis=0, ddof=1), asked[..., 1].mean(axis=0)
    off = asked[..., 1] - asked[:, :1, 1] * (wide / wide[0])
    off_error = off.std(axis=0, ddof=1) / np.sqrt(len(table)) / wide[0]
    ratio, error = against_one_split(table)
    lines = []
    for k, name in enumerate(list(CALIBRATIONS)[: table.shape[1]]):
        cells = [over, name, f"{100 * asked[:, k, 0].mean():.1f} %", f"{spread[k]:.2f}"]
        cells += [f"{spread[k] / spread[0] - 1:+.0%}" if k else "", f"{wide[k]:.3f}"]
        ratios = ((wide[k] / wide[0], off_error[k]), (ratio[k], error[k]))
        cells += [f"{one:.3f} +- {about:.3f}" if k else "" for one, about in ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(size: int = 40, seeds: int = 16, first: int = 0) -> None:
    print(f"{seeds} seeds from {first} at {size}^3\n")
    print(
        "| over | calibration | coverage | its standard deviation | against one split | mean width | against one split "
        "| at equal coverage |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for over in ("data sets", "splits of one data set"):
        found = []
        for seed in range(first, first + seeds):
            setting = simulate.paper_setting(size, 3, seed=seed if over == "data sets" else first)
            found.append([measured(setting, one, seed) for one in CALIBRATIONS.values()])
        print("\n".join(rows(over, np.array(found))), flush=True)


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:4]))
