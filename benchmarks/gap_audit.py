"""How far an audit of gap-shaped calibration is from the truth, on simulated TEC-like fields.

    python benchmarks/gap_audit.py 9 6     (fields, rounds of the audit)
"""

from __future__ import annotations

import sys

import numpy as np

import corten
from corten import metrics, simulate

LEVELS = (0.8, 0.9)


def main(fields: int, rounds: int) -> None:
    print("| field | covered at 80 % | audited | off by | covered at 90 % | audited | off by |")
    print("|---|---|---|---|---|---|---|")
    off = []
    for seed in range(fields):
        field = simulate.tec_like((24, 30, 24), seed=seed)
        fitted = corten.ConformalCompleter(completion="smooth", calibration="gaps").fit(field.observed)
        audit = fitted.audit(rounds=rounds, levels=LEVELS)
        true = [metrics.coverage(field.truth, fitted.intervals(level)) for level in LEVELS]
        said = [audit.coverage(level) for level in LEVELS]
        off.append(np.subtract(said, true))
        error = [audit.standard_error(level) for level in LEVELS]
        cells = [
            f"{100 * true[k]:.1f} % | {100 * said[k]:.1f} +- {100 * error[k]:.1f} % | {100 * off[-1][k]:+.1f}"
            for k in range(len(LEVELS))
        ]
        print(f"| {seed} | {' | '.join(cells)} |", flush=True)
    mean, spread = 100 * np.mean(off, axis=0), 100 * np.sqrt(np.mean(np.square(off), axis=0))
    print(f"\nmean {mean[0]:+.1f} and {mean[1]:+.1f} points, root mean square {spread[0]:.1f} and {spread[1]:.1f}")


if __name__ == "__main__":
    main(*(int(one) for one in sys.argv[1:3]) if len(sys.argv) > 2 else (9, 6))
