"""How an entry of a result got its value: the codes of `result.flag`."""

FLAG_MEANINGS = (
    "observed", "filled", "filled_with_infinite_interval", "forecast", "outside_the_domain", "filled_beyond_tested",
    "filled_never_observed",
)  # fmt: skip
OBSERVED, FILLED, INFINITE, FORECAST, OUTSIDE, BEYOND, NEVER = range(7)
