"""What two fits of one mask have in common, whoever adds up the sums.

A descent stops where its last step is small. Sums in another order (another processor, library, number of devices)
round otherwise, and in a flat valley the parameter then stops elsewhere, with the same loss. So fits are compared by
their losses and probabilities, and engines by one pass at one point, where loss and gradient are determined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

LOSS = 1e-4  # relative
PROBABILITY = 5e-3  # root mean square; a wrong sign or a missing plane changes it by more than 0.05


def assert_same_fit(one: Any, other: Any, mask: Any) -> None:
    """Equal ranks, losses and probabilities of being observed."""
    assert other.rank == one.rank
    assert other.loss == pytest.approx(one.loss, rel=LOSS)
    gap = np.asarray(other.probability(mask), float) - np.asarray(one.probability(mask), float)
    assert np.sqrt((gap**2).mean()) <= PROBABILITY
