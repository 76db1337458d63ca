"""Progress of a fit in words: its stages, what it will take, and lines for a Python session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

from corten.results.summary import duration

STAGES = {
    "starting": ("starting", 0.0, 0.02),
    "reading": ("reading the data", 0.02, 0.04),
    "planning": ("planning the calibration", 0.04, 0.14),
    "completion": ("filling the gaps", 0.14, 0.85),
    "missingness": ("modelling the missingness", 0.85, 0.9),
    "calibration": ("calibrating", 0.9, 0.98),
    "writing": ("writing", 0.98, 1.0),
}
"""The stages of a fit: what is shown, and the share of the whole time before and after each, roughly."""
COMPILING_SECONDS = 20.0  # of the first fit on a machine


def cost(seconds: float, needed: int, on_device: int | None = None) -> str:
    """Time and memory of a fit in words; they are predictions, so small ones are not told apart.

    The time of a fit with rounds on a device is not predicted.

    Example:
        >>> cost(3.0, 10_000)  # doctest: +ELLIPSIS
        'less than 10 s on ... idle core..., less than 100 MB of memory besides Python'
        >>> cost(3.0, 10_000, 1_500_000_000)
        'less than 100 MB of memory besides Python and about 1.5 GB of the memory of the device'
    """
    from corten.engine.memory import in_words
    from corten.engine.threads import default_threads

    time = f"about {duration(seconds)}" if seconds >= 10 else "less than 10 s"
    memory = f"about {in_words(needed)}" if needed >= 100_000_000 else "less than 100 MB"
    memory += " of memory besides Python"
    if on_device is not None:
        return f"{memory} and about {in_words(on_device)} of the memory of the device"
    cores = default_threads()
    return f"{time} on {'one idle core' if cores == 1 else f'{cores} idle cores'}, {memory}"


def compiling() -> str:
    """What to say of the time to compile; empty if compiled kernels are kept on disk."""
    from corten.engine.compiled import kept_kernels

    _, count = kept_kernels()
    return "" if count else f"; the first fit also compiles, for about {COMPILING_SECONDS:.0f} s"


class Predicted:
    """Says what a fit will take, and nothing of its stages."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def __call__(self, stage: str, share: float) -> None:
        pass

    def predicted(self, seconds: float, needed: int, on_device: int | None = None) -> None:
        """Say the time and memory that a fit will take."""
        self.say(f"predicted: {cost(seconds, needed, on_device)}{compiling()}")


class PrintedProgress(Predicted):
    """Prints the prediction and every stage of a fit to standard error, one line each."""

    def __init__(self) -> None:
        super().__init__(lambda text: print(f"corten: {text}", file=sys.stderr, flush=True))
        self.began, self.stage = monotonic(), ""

    def __call__(self, stage: str, share: float) -> None:
        if stage != self.stage:
            self.stage = stage
            self.say(f"{STAGES.get(stage, (stage,))[0]} (elapsed {duration(monotonic() - self.began)})")


def as_progress(progress: object) -> Callable[[str, float], None]:
    """The function that is told of progress: printed lines for True, nothing for None or False."""
    if progress is True:
        return PrintedProgress()
    if progress is None or progress is False:
        return lambda stage, share: None
    if not callable(progress):
        raise TypeError(f"progress is {progress!r}: give True, or a function of a stage and the share of it done")
    return progress  # type: ignore[no-any-return]
