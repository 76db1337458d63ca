"""Messages name settings as keywords of Python; the command line shows the same messages with its options."""

from __future__ import annotations

import re

OPTION_SPELLINGS = {
    "axis_kinds": "unordered-axis", "value": "variable",
    **{name: name.replace("_", "-") for name in (
        "axes", "axis", "bounds", "calibration", "checkpoint", "completion", "covariates", "coverage", "engine",
        "fill_never_observed", "full", "label", "layout", "memory", "missing_value", "overwrite", "periodic",
        "propensity", "score", "seed", "transform", "variable", "weights", "where",
    )},
}  # fmt: skip
KEYWORD = re.compile(
    rf"(?<!in Python )\b({'|'.join(OPTION_SPELLINGS)})="
    r"(\{[^}]*\}|\([^)]*\)|\[[^]]*\]|'[^']*'|\"[^\"]*\"|corten\.\w+\([^)]*\)|-?\w[\w.+-]*\w|\w)?"
)
PYTHON_ONLY = re.compile(r" \((?:result|fitted|corten)\.[^)]*\)")  # a name in brackets, beside what it is about
OBJECT = re.compile(r"(?:,| or) an object(?: or a function)?$")  # at the end of a list of names
ENGINE_OBJECTS = ", a distributed.Client, a number of threads, or an engine object"
METHOD = re.compile(r"\bfitted\.(audit|fill|update|verify)(?:\(\w*\))?")


def in_options(text: str) -> str:
    """A message with options of the command line in place of keywords of Python."""
    text = text.replace(ENGINE_OBJECTS, " or a number of threads")
    text = OBJECT.sub("", PYTHON_ONLY.sub("", text.replace("summary(full=True)", "--full")))
    return METHOD.sub(r"corten \1", KEYWORD.sub(_option, text))


def _option(found: re.Match[str]) -> str:
    """One keyword and its value as an option."""
    name, value = f"--{OPTION_SPELLINGS[found[1]]}", found[2] or ""
    if value.startswith("corten."):  # an object, which the command line has no name for
        return f"in Python {found[0]}"
    if value in ("", "True"):
        return name
    if "'ordered'" in value:
        name = "--ordered-axis"
    value = re.sub(r"\bNone\b|[\s'\"(){}\[\]]", "", value.partition(":")[0] if value.startswith("{") else value)
    return f"{name} {value}"
