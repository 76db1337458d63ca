"""Speed and memory of corten: `python -m benchmarks`."""
