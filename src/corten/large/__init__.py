"""Completion of tensors larger than memory: read, fitted, calibrated and written block by block."""
