"""How an entry of a result got its value: the codes of `result.flag`."""

__all__ = ["BEYOND", "FILLED", "FLAG_MEANINGS", "FORECAST", "INFINITE", "OBSERVED", "OUTSIDE"]

FLAG_MEANINGS = (
    "observed", "filled", "filled_with_infinite_interval", "forecast", "outside_the_domain", "filled_beyond_tested",
)  # fmt: skip
OBSERVED, FILLED, INFINITE, FORECAST, OUTSIDE, BEYOND = range(6)
