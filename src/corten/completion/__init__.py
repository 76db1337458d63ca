"""Completions: methods that fill a tensor. Each has `prepare`, which chooses its settings, and `fill`."""
