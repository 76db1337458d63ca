"""Speed and memory, measured beside plain implementations on the same data in one run: `corten bench`."""

from corten.bench.run import run_cases

__all__ = ["run_cases"]
