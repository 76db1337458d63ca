"""Raking of odds: in every slice and class of odds, the odds of the observed entries sum to the number missing."""

from __future__ import annotations

import numpy as np

from corten.data.arrays import Entries, Flags, Floats, Numbers

ODDS_CLASSES = 20
MAX_SWEEPS = 10
MAX_FACTOR = 4.0  # by which one step changes odds
MIN_CLASS_ENTRIES = 20  # observed, and missing, in a class that is changed
MAX_LOG_ODDS_CHANGE = 1e-3  # in log-odds: sweeps that change less end the iteration


def rake(log_odds: Numbers, mask: Flags, missing: Flags) -> Floats:
    """Log-odds of being missing, corrected by iterative proportional fitting.

    True odds satisfy E[sum of odds over the observed entries of a set] = E[number missing in the set]. Fitted odds need
    not, as a ridge shrinks extreme odds. Twenty classes of similar odds and the slices of every axis are corrected in
    turn. A class with fewer than twenty observed or missing entries is not changed, and one step changes odds by at
    most a factor of four.
    """
    logs = np.array(log_odds, np.float64)
    edges = np.unique(np.quantile(logs[mask | missing], np.linspace(0, 1, ODDS_CLASSES + 1)[1:-1]))
    classes = np.searchsorted(edges, logs, side="right")
    groups: list[Entries] = [classes, *np.broadcast_arrays(*np.indices(mask.shape, sparse=True))]
    for _ in range(MAX_SWEEPS):
        moved = 0.0
        for group in groups:
            step = _step(logs, group, mask, missing)
            moved = max(moved, float(np.abs(step).max()))
            logs += step[group]
        if moved < MAX_LOG_ODDS_CHANGE:
            break
    return logs


def _step(logs: Floats, group: Entries, mask: Flags, missing: Flags) -> Floats:
    """The correction of the log-odds of each group."""
    count = int(group.max()) + 1
    here = group[mask]
    wanted = np.bincount(group[missing], minlength=count)
    have = np.bincount(here, np.exp(logs[mask]), minlength=count)
    able = (wanted >= MIN_CLASS_ENTRIES) & (np.bincount(here, minlength=count) >= MIN_CLASS_ENTRIES)
    ratio = np.divide(wanted, have, out=np.ones(count), where=able & (have > 0))
    return np.asarray(np.log(np.clip(ratio, 1 / MAX_FACTOR, MAX_FACTOR)))
