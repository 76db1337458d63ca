"""corten: intervals you can trust for the missing entries of a tensor."""

__version__ = "0.1.0"
