"""Calibration strategies: which observed entries are hidden, how they are filled, scored and weighted."""
