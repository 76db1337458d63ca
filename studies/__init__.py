"""Repeats the paper's simulations, keeps every number, and sets it beside the paper's own."""
