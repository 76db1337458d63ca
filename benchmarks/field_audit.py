"""How far an audit of the defaults is from the truth on real fields whose truth is known at the gaps.

    python -m benchmarks field_audit 20 tec-america-1 tec-global-1 ndvi-50     (rounds of the audit, sets)

Sets are those of `python -m studies tec` and need its data. Truth is used for the column "covered" alone.
"""

from __future__ import annotations

import sys
from time import process_time

import numpy as np

import corten
from studies.field_sets import data_folder, load_set

LEVELS = (0.5, 0.8, 0.9, 0.95)


def main(rounds: int, names: list[str]) -> None:
    print("| set | asked | covered | audited | off by | CPU s of the fit | of the audit |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        field = load_set(name, data_folder(None))
        began = process_time()
        completer = corten.ConformalCompleter()
        fitted = completer.fit(field.observed, periodic=field.periodic, axis_kinds=field.axis_kinds)
        middle = process_time()
        audit = fitted.audit(rounds=rounds, levels=LEVELS)
        ended = process_time()
        for level in LEVELS:
            lower, upper = fitted.bounds(level)
            true = np.mean(((lower <= field.truth) & (field.truth <= upper))[field.score])
            said = audit.coverage(level)
            numbers = f"{100 * true:.1f} % | {100 * said:.1f} +- {100 * audit.standard_error(level):.1f} %"
            cost = f"{middle - began:.0f} | {ended - middle:.0f}"
            print(f"| {name} | {level:.0%} | {numbers} | {100 * (said - true):+.1f} | {cost} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
