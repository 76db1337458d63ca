"""Names of array types in annotations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Entries = NDArray[np.intp]
"""Flat indices of entries."""
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Numbers = NDArray[np.floating]
