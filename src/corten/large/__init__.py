"""Completion of tensors larger than memory: read, fitted, calibrated and written in runs of planes."""
