"""Keeps finished rounds of a long fit on disk: an interrupted fit resumes and gives the same bits."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from dis import get_instructions
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from pickle import Pickler, PicklingError
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np

from corten import __version__
from corten.calibration.task import Outcome
from corten.completion.protocol import Completion, Fill, Prepared, PreparedMix
from corten.data.axes import Axis
from corten.data.choices import Choice
from corten.io.archive import read_archive, write_archive

FORMAT = "corten round"
_NAME = re.compile(r"[0-9a-f]{32}\.round")
_GENERATED = ("__dict__", "__weakref__", "__doc__", "__dataclass", "__firstlineno__", "_abc_", "__parameters__")
_PYTHON = 1 << 9  # flag of classes defined in Python; the state of others is hidden


@dataclass
class Checkpoint:
    """A folder that keeps the finished rounds of a fit.

    Use it as a context manager. The rounds are removed when the block ends without an error; after an error or a kill
    they stay, and the same code resumes.

    Parameters
    ----------
    folder : str or path
        The folder. It is created when the first round is kept.

    Attributes
    ----------
    kept : int
        Number of rounds that were read from the folder instead of computed.

    Raises
    ------
    NotADirectoryError
        If `folder` is a file.
    ValueError
        In the fit, if the completion refers to objects that cannot be compared between two runs.

    Notes
    -----
    A round is identified by a hash of the data, its training entries, all options with their arrays, and the versions
    of corten, NumPy, SciPy and Numba. After any change the round is computed again. Code of your own is part of the
    hash: instructions, defaults, closures and the globals it names. Files are written whole or not at all and carry
    checksums; a damaged one is replaced. Only files that corten wrote are removed.

    Examples
    --------
    >>> with Checkpoint("tec.checkpoint") as checkpoint:                      # doctest: +SKIP
    ...     result = corten.complete(x, checkpoint=checkpoint)
    ...     result.to_netcdf("filled.nc")
    """

    folder: str | os.PathLike[str]
    kept: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        folder = Path(self.folder)
        there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
        if there.exists() and not there.is_dir():
            raise NotADirectoryError(f"{there} is a file, and a checkpoint is a folder: give another name")

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.clear()

    def clear(self) -> None:
        """Remove the rounds that corten wrote, and the folder if nothing else is in it."""
        for file in Path(self.folder).glob("*.round"):
            with suppress(ValueError, OSError):
                if _NAME.fullmatch(file.name) and file.is_file():
                    read_archive(file, FORMAT)  # raises where corten did not write it
                    file.unlink()
        with suppress(OSError):
            Path(self.folder).rmdir()

    def keeping(self, completion: Completion) -> Completion:
        """The same completion, which reads fills from this folder and writes new ones to it."""
        return _Keeping(completion, self, fingerprint(completion))

    @staticmethod
    def release(outcome: Outcome) -> Outcome:
        """The outcome with completions that no longer read or write a folder: the fit may be saved and used later."""
        split = outcome.calibrated
        local = getattr(split, "local", None)
        if local is not None:
            split = replace(split, local=replace(local, first=_plain(local.first)))  # type: ignore[type-var]
        return replace(outcome, calibrated=split, completion=_plain(outcome.completion))

    def _fill(self, key: str, shape: tuple[int, ...], work: Callable[[], Fill]) -> Fill:
        path = Path(self.folder) / f"{key}.round"
        if path.exists():
            # A damaged file is treated as absent: the round is computed again and the file replaced.
            with suppress(ValueError, KeyError, TypeError):
                content, arrays = read_archive(path, FORMAT)
                names = cast(list[str], content["members"])
                members = {name: arrays[f"m{k}"] for k, name in enumerate(names)}
                fill = Fill(arrays["estimate"], members)
                if content["leverage"]:  # computed again if it is needed, which is rare
                    fill = replace(fill, leverage=lambda: work().leverage())  # type: ignore[misc]
                if {shape} != {one.shape for one in (fill.estimate, *members.values())}:
                    raise ValueError(f"{path} holds another shape than {shape}")
                self.kept += 1
                return fill
        fill = work()
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        arrays = {"estimate": fill.estimate} | {f"m{k}": one for k, one in enumerate(fill.members.values())}
        content = {"members": list(fill.members), "leverage": fill.leverage is not None}
        write_archive(path, FORMAT, content, arrays, overwrite=True, packed=False)
        return fill


def _plain(prepared: Prepared) -> Prepared:
    return prepared.prepared if isinstance(prepared, _Kept) else prepared


@dataclass(frozen=True)
class _Keeping:
    completion: Completion
    checkpoint: Checkpoint
    known: str

    def prepare(self, values: np.ndarray, mask: np.ndarray, axes: Sequence[Axis], seed: int) -> Prepared:
        described = [(axis.name, axis.kind, axis.periodic, axis.length, axis.coordinates) for axis in axes]
        known = fingerprint([_versions(), self.known, seed, described, np.where(mask, values, 0), mask])
        prepared = self.completion.prepare(values, mask, axes, seed)
        if isinstance(prepared, PreparedMix):
            return _KeptMix(prepared, self.checkpoint, known)
        return _Kept(prepared, self.checkpoint, known)


@dataclass(frozen=True)
class _Kept:
    prepared: Prepared
    checkpoint: Checkpoint
    known: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.prepared.choices

    def fill(self, values: np.ndarray, mask: np.ndarray) -> Fill:
        key = fingerprint([self.known, np.where(mask, values, 0), mask])
        return self.checkpoint._fill(key[:32], values.shape, lambda: self.prepared.fill(values, mask))


@dataclass(frozen=True)
class _KeptMix(_Kept):
    """A kept stack; a class of its own, since rounds of anything with `combine` and `mix` run in several threads."""

    prepared: PreparedMix

    def combine(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedMix:
        """The mix learned from members; it is cheap and not kept."""
        return self.prepared.combine(members, truth)

    def combine_by_difference(self, members: Mapping[str, np.ndarray], truth: np.ndarray) -> PreparedMix:
        combine = getattr(self.prepared, "combine_by_difference", self.prepared.combine)
        found: PreparedMix = combine(members, truth)
        return found

    def mix(self, members: Mapping[str, np.ndarray]) -> np.ndarray:
        return self.prepared.mix(members)


@cache
def _versions() -> str:
    return f"corten {__version__} " + " ".join(f"{one} {version(one)}" for one in ("numpy", "scipy", "numba"))


def fingerprint(value: object) -> str:
    """A hash of data, objects and code; a ValueError for objects that cannot be compared between two runs."""
    found = sha256()
    try:
        _Hashing(SimpleNamespace(write=found.update)).dump(value)
    except (TypeError, PicklingError) as problem:
        raise ValueError(
            f"a checkpoint cannot be used here ({problem}): it is unknown whether the completion is the same in "
            "the next run; leave the checkpoint out, or use plain values and functions (from module import function)"
        ) from None
    return found.hexdigest()


class _Hashing(Pickler):
    """Writes values as pickle does, code by its content, to a hash: nothing is ever read back."""

    def persistent_id(self, value: object) -> object:
        """Sets by their content, as they have no order; engines by a word: results do not depend on them."""
        if isinstance(value, set | frozenset):
            return sorted(map(fingerprint, value))
        return "an engine" if hasattr(value, "mask_pass") or hasattr(value, "scheduler_info") else None

    def reducer_override(self, value: Any) -> Any:
        """What is written in place of a value: an object whose state are the parts; NotImplemented: as pickle does."""
        parts = None if value is object else _parts(value)
        return NotImplemented if parts is None else (object, (), [type(value).__qualname__, *parts])


def _parts(value: Any) -> list[object] | None:
    """The parts of code and of what belongs to it, on which results depend; None for anything that pickle can write."""
    if isinstance(value, staticmethod | classmethod | property):
        return [value.fget if isinstance(value, property) else value.__func__]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_varnames, *value.co_consts]
    if isinstance(value, Mapping):
        return list(value.items())
    if hasattr(value, "py_func"):  # compiled by Numba
        return [value.py_func]
    if isinstance(value, ModuleType) and _of_package(value.__name__):
        return [value.__name__, _version(value.__name__)]
    if _installed(value):
        return [_home(value), _name(value), _version(_home(value))]
    if isinstance(value, FunctionType):
        codes = list(_codes(value.__code__))
        names = sorted({name for one in codes for name in one.co_names if name in value.__globals__})
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        used = {name: value.__globals__[name] for name in names}
        for name in sorted(set().union(*map(_imports, codes))):
            with suppress(ImportError):  # nor can the function import it
                used[name] = import_module(name, value.__globals__.get("__package__"))
        return [value.__code__, value.__defaults__, value.__kwdefaults__, vars(value), cells, used]
    if isinstance(value, type) and value.__flags__ & _PYTHON:
        own = {name: one for name, one in vars(value).items() if not name.startswith(_GENERATED)}
        return [value.__qualname__, *value.__mro__[1:-1], own]
    in_c = isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, ModuleType | None)
    if isinstance(value, type | ModuleType) or in_c:
        raise TypeError(f"{'the module' if isinstance(value, ModuleType) else 'in C:'} {value.__name__}")
    return None


def _installed(value: object) -> bool:
    """Whether a name in Python, an installed package or corten means this very object: its version says what it does.

    What such code made at run time (a wrapper around a function of the user) has no such name.
    """
    found: object = sys.modules.get(_home(value))
    for part in _name(value).split("."):
        found = getattr(found, part, None)
    return found is value and _of_package(_home(value))


def _home(value: object) -> str:
    """The module that has an object; functions of scipy.special do not say theirs."""
    return str(getattr(value, "__module__", None) or ("scipy.special" if isinstance(value, np.ufunc) else ""))


def _name(value: object) -> str:
    return str(getattr(value, "__qualname__", getattr(value, "__name__", None)))


def _of_package(module: str) -> bool:
    top = module.partition(".")[0]
    if top == "corten" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return any(file.startswith(f"{sysconfig.get_path(one)}{os.sep}") for one in ("purelib", "platlib"))


def _version(module: str) -> str:
    return str(getattr(sys.modules.get(module.partition(".")[0]), "__version__", ""))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Code, and the code inside it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _imports(code: CodeType) -> set[str]:
    """Modules that code imports when it runs."""
    steps = list(get_instructions(code))  # the number of dots of a relative import, the names, the import
    return {"." * dots.argval + one.argval for dots, one in zip(steps, steps[2:]) if one.opname == "IMPORT_NAME"}
