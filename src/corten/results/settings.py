"""Settings of a fit as text, so that it can be run again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from corten import __version__
from corten.data.axes import Axis


def describe(option: object) -> str:
    """An option as text for settings and files: short, and the same on every run; "none" for None."""
    if option is None:
        return "none"
    if isinstance(option, str):
        return option
    if callable(option) and not isinstance(option, type) and hasattr(option, "__name__"):
        return f"function {option.__name__}"
    text = repr(option)
    return text if len(text) <= 300 else f"{type(option).__name__}(...)"


def circumstances(axes: Sequence[Axis], outside: int) -> dict[str, str | int]:
    """The settings that are not options: kinds of the axes, entries outside the domain, versions."""
    kinds = [f"{axis.name} {axis.kind}{' periodic' if axis.periodic else ''}" for axis in axes]
    return {
        "axes": ", ".join(kinds), "outside_the_domain": outside, "corten": __version__, "numpy": np.__version__
    }  # fmt: skip
