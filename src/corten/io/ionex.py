"""Read IONEX files: maps of the total electron content of the ionosphere (versions 1.0 and 1.1).

The format has fixed columns: a record's label stands in columns 61-80, numbers in fields of six (grids) or
five (map values) characters. Values are integers in units of 10**exponent TECU; 9999 says that there is none.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from corten.io.files import MAX_BYTES, check_size, existing

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["is_ionex_name", "read_ionex"]

NO_VALUE = 9999
LZW_MAGIC = b"\x1f\x9d"  # of `.Z` files
LZW_CLEAR = 256  # the code that empties the table of words
LARGEST_TEXT = 2**30  # a day of maps every minute is a sixth of it
_NAME = re.compile(r"\.(\d\di|inx|ionex)(\.z|\.gz)?$", re.IGNORECASE)
_KINDS = {"TEC": "tec", "RMS": "rms", "HEIGHT": "height"}
_LABELS = {"MAPPING FUNCTION": "mapping_function", "OBSERVABLES USED": "observables_used"}


def is_ionex_name(path: str | os.PathLike[str]) -> bool:
    """Whether a file name is a usual one: ``uqrg1150.19i.Z``, ``IGS0OPSFIN_..._GIM.INX.gz``."""
    return _NAME.search(Path(path).name) is not None


def read_ionex(
    path: str | os.PathLike[str], *, keep_repeated_meridian: bool = False, max_bytes: int = MAX_BYTES
) -> xr.Dataset:
    """Read TEC maps (and RMS maps, where present) as `tec` and `rms` over lat, lon, time, in TECU.

    A global map usually writes the meridian of -180 degrees again at +180. Here it is kept once (a value
    missing at one end is taken from the other), so that longitude is periodic;
    `keep_repeated_meridian=True` keeps both. Several shells give a further axis, height.

    Examples
    --------
    >>> tec = read_ionex("uqrg1150.19i.Z").tec                        # doctest: +SKIP
    """
    found = existing(path)
    reader = _Reader(found, _text(found, max_bytes).splitlines(), max_bytes)
    return reader.dataset(keep_repeated_meridian)


def _text(path: Path, max_bytes: int) -> str:
    raw = path.read_bytes()
    max_bytes = min(max_bytes, LARGEST_TEXT)
    try:
        if raw[:2] == LZW_MAGIC:
            raw = decompress(raw, max_bytes)
        elif raw[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(raw)) as packed:
                raw = packed.read(max_bytes + 1)
    except (ValueError, EOFError, OSError, zlib.error) as problem:
        raise ValueError(f"{path} could not be unpacked (damaged or cut short): {problem}") from None
    if len(raw) > max_bytes:
        raise ValueError(f"{path} decompresses to more than {max_bytes} bytes")
    return raw.decode("latin-1")


class _Reader:
    def __init__(self, path: Path, lines: list[str], max_bytes: int) -> None:
        self.path, self.lines, self.max_bytes = path, lines, max_bytes
        self.at = 0  # index of the line being read
        self.grid: dict[str, np.ndarray] = {}
        self.attrs: dict[str, str | float] = {}
        self.exponent = -1
        self.declared: int | None = None
        self.maps: dict[str, dict[np.datetime64, np.ndarray]] = {kind: {} for kind in _KINDS.values()}

    def dataset(self, keep_repeated_meridian: bool) -> xr.Dataset:
        import xarray as xr

        self.header()
        self.body()
        lat, lon, height = self.grid["LAT"], self.grid["LON"], self.grid["HGT"]
        repeated = lon.size > 2 and abs(abs(lon[-1] - lon[0]) - 360.0) < 1e-6 and not keep_repeated_meridian
        dims = ["lat", "lon", "time"] if height.size == 1 else ["height", "lat", "lon", "time"]
        variables = {}
        for kind, name in (("tec", "total electron content"), ("rms", "error of the total electron content")):
            times = sorted(self.maps[kind])
            if not times:
                continue
            values = np.stack([self.maps[kind][time] for time in times], axis=-1)
            if repeated:
                values = _join(values)
            if height.size == 1:
                values = values[0]
            attrs = {"units": "TECU", "long_name": name}
            variables[kind] = xr.DataArray(values, dims=dims, coords={"time": np.array(times)}, attrs=attrs)
        data = xr.Dataset(variables)  # RMS maps may exist for some epochs only: joined by time
        east = lon[:-1] if repeated else lon
        coords = {
            "lat": ("lat", lat, {"units": "degrees_north", "standard_name": "latitude"}),
            "lon": ("lon", east, {"units": "degrees_east", "standard_name": "longitude"}),
        }
        if height.size > 1:
            coords["height"] = ("height", height, {"units": "km"})
        about = self.attrs | {"source_format": "IONEX", "repeated_meridian": "dropped" if repeated else "none"}
        return data.assign_coords(coords).assign_attrs(about)

    def fail(self, expected: str) -> NoReturn:
        line = self.lines[self.at].rstrip() if self.at < len(self.lines) else None
        found = "the end of the file" if line is None else repr(line[:80])
        raise ValueError(f"{self.path}, line {self.at + 1}: expected {expected}, found {found}")

    def label(self) -> str:
        if self.at >= len(self.lines):
            self.fail("another record (the file is cut short)")
        return self.lines[self.at][60:].strip()

    def numbers(self, start: int, width: int, count: int, what: str) -> list[float]:
        line = self.lines[self.at].ljust(start + width * count)
        try:
            found = [float(line[start + width * i : start + width * (i + 1)]) for i in range(count)]
        except ValueError:
            found = [np.nan]
        if not np.isfinite(found).all():
            self.fail(f"{what}: {count} number(s) of {width} columns from column {start + 1}")
        return found

    def integer(self, what: str) -> int:
        return int(self.numbers(0, 6, 1, what)[0])

    def power(self) -> int:
        exponent = self.integer("EXPONENT")
        if abs(exponent) > 20:
            self.fail("an exponent between -20 and 20")
        return exponent

    def header(self) -> None:
        if not self.lines or self.label() != "IONEX VERSION / TYPE":
            self.fail("the record IONEX VERSION / TYPE of an IONEX file")
        version = self.numbers(0, 8, 1, "the version")[0]
        if not 1.0 <= version < 2.0:
            self.fail("version 1.0 or 1.1")
        if self.lines[0][20:21].upper() not in ("I", " "):
            self.fail("file type I (ionosphere maps)")
        self.attrs["ionex_version"] = version
        while (label := self.label()) != "END OF HEADER":
            if label == "EXPONENT":
                self.exponent = self.power()
            elif label == "# OF MAPS IN FILE":
                self.declared = self.integer(label)
            elif label in ("HGT1 / HGT2 / DHGT", "LAT1 / LAT2 / DLAT", "LON1 / LON2 / DLON"):
                self.grid[label[:3]] = self.axis(*self.numbers(2, 6, 3, label))
            elif label in ("BASE RADIUS", "ELEVATION CUTOFF"):
                self.attrs[label.lower().replace(" ", "_")] = self.numbers(0, 8, 1, label)[0]
            elif label in _LABELS:
                self.attrs[_LABELS[label]] = self.lines[self.at][:60].strip()
            elif label == "START OF AUX DATA":
                while self.label() != "END OF AUX DATA":
                    self.at += 1
            self.at += 1
        for name in ("LAT", "LON"):
            if name not in self.grid:
                self.fail(f"the record {name}1 / {name}2 / D{name} before the end of the header")
        self.grid.setdefault("HGT", np.array([450.0]))
        shape = (self.grid["HGT"].size, self.grid["LAT"].size, self.grid["LON"].size)
        check_size((*shape, max(self.declared or 1, 1)), 8, self.max_bytes, str(self.path))
        # A value takes five columns: a larger grid cannot be in the file.
        if 5 * int(np.prod(shape)) > sum(map(len, self.lines)):
            self.fail(f"the {' x '.join(map(str, shape))} values that the header declares")
        self.at += 1

    def axis(self, first: float, last: float, step: float) -> np.ndarray:
        if first == last:
            return np.array([first])
        count = (last - first) / step if step else -1.0
        if not 0 < count < 1e5 or abs(count - round(count)) > 1e-3:
            self.fail("an axis whose step leads from its first to its last value")
        return first + step * np.arange(round(count) + 1)

    def body(self) -> None:
        while self.at < len(self.lines) and (label := self.label()) != "END OF FILE":
            kind = _KINDS.get(label.removeprefix("START OF ").removesuffix(" MAP"))
            if kind and label.startswith("START OF"):
                self.at += 1
                self.map(kind, label.replace("START", "END"))
            elif label == "EXPONENT":
                self.exponent = self.power()
            elif label not in ("COMMENT", "") or (not label and self.lines[self.at].strip()):
                self.fail("START OF TEC MAP, START OF RMS MAP or END OF FILE")
            self.at += 1
        read = len(self.maps["tec"])
        if not read or (self.declared is not None and read < self.declared):
            self.fail(f"{self.declared or 'one or more'} TEC maps, of which {read} are there")
        if self.at >= len(self.lines):
            self.fail("END OF FILE (the file is cut short)")

    def map(self, kind: str, end: str) -> None:
        lat, lon, height = self.grid["LAT"], self.grid["LON"], self.grid["HGT"]
        values = np.full((height.size, lat.size, lon.size), np.nan)
        time: np.datetime64 | None = None
        filled = 0
        while (label := self.label()) != end:
            if label == "EPOCH OF CURRENT MAP":
                time = self.epoch()
            elif label == "EXPONENT":
                self.exponent = self.power()
            elif label == "LAT/LON1/LON2/DLON/H":
                row, *span, shell = self.numbers(2, 6, 5, label)
                i = self.place(lat, row, "latitude")
                h = 0 if height.size == 1 else self.place(height, shell, "height")
                if self.axis(*span).size != lon.size or abs(span[0] - lon[0]) > 1e-6:
                    self.fail("the longitudes that the header declares")
                values[h, i] = self.row(lon.size)
                filled += 1
            elif label != "COMMENT":
                self.fail(f"LAT/LON1/LON2/DLON/H or {end}")
            self.at += 1
        if time is None:
            self.fail("EPOCH OF CURRENT MAP before the end of the map")
        if filled != height.size * lat.size:
            self.fail(f"{height.size * lat.size} rows of latitude in this map, of which {filled} are there")
        if time in self.maps[kind]:
            raise ValueError(f"{self.path}: two {kind.upper()} maps have the same epoch, expected each once")
        self.maps[kind][time] = values

    def place(self, axis: np.ndarray, value: float, what: str) -> int:
        nearest = int(np.abs(axis - value).argmin())
        if abs(axis[nearest] - value) > 1e-3:
            self.fail(f"a {what} of the grid {axis[0]:g} to {axis[-1]:g}")
        return nearest

    def row(self, count: int) -> np.ndarray:
        """The values of one latitude, sixteen to a line; on return `at` is their last line."""
        numbers: list[float] = []
        while len(numbers) < count:
            self.at += 1
            if self.at >= len(self.lines):
                self.fail(f"{count - len(numbers)} more map values (the file is cut short)")
            numbers += self.numbers(0, 5, min(16, count - len(numbers)), "map values")
        stored = np.array(numbers)
        return np.where(stored == NO_VALUE, np.nan, stored * 10.0**self.exponent)

    def epoch(self) -> np.datetime64:
        year, month, day, hour, minute, second = (int(n) for n in self.numbers(0, 6, 6, "an epoch"))
        if not (1 <= month <= 12 and 1 <= day <= 31 and 0 <= hour <= 24 and 0 <= minute <= 60 and 0 <= second <= 60):
            self.fail("an epoch: year, month, day, hour (0-24), minute, second")
        start = np.datetime64(f"{year:04d}-{month:02d}", "D") + np.timedelta64(day - 1, "D")
        return start.astype("datetime64[ns]") + np.timedelta64(3600 * hour + 60 * minute + second, "s")


def _join(values: np.ndarray) -> np.ndarray:
    """Drop the repeated last meridian after taking from it what the first one lacks."""
    joined = values[..., :-1, :].copy()
    joined[..., 0, :] = np.where(np.isnan(joined[..., 0, :]), values[..., -1, :], joined[..., 0, :])
    return joined


def decompress(data: bytes, max_bytes: int = 2**31) -> bytes:
    """The content of a `.Z` file (adaptive LZW, codes of 9 to 16 bits); a ValueError names the byte that is damaged.

    Codes are packed from the low bit up, in groups of eight codes: when the code length changes, or the table
    is cleared, the rest of the group is padding.
    """
    if len(data) < 3 or data[:2] != LZW_MAGIC:
        raise ValueError("byte 0: expected the two bytes 1f 9d that open a .Z file")
    widest, block_mode = data[2] & 0x1F, bool(data[2] & 0x80)
    if not 9 <= widest <= 16:
        raise ValueError(f"byte 2: expected a code length of 9 to 16 bits, found {widest}")
    first_free = 257 if block_mode else 256
    words: list[bytes] = [bytes([i]) for i in range(256)] + ([b""] if block_mode else [])
    out: list[bytes] = []
    size = 0
    width, position, group = 9, 24, 24  # in bits; `group` is where the present group of eight codes began
    end = 8 * len(data)
    previous = b""
    while position + width <= end:
        byte = position >> 3
        code = (int.from_bytes(data[byte : byte + 4], "little") >> (position & 7)) & ((1 << width) - 1)
        position += width
        if block_mode and code == LZW_CLEAR:
            del words[first_free:]
            position = group = _next_group(position, group, width)
            width, previous = 9, b""
            continue
        if code < len(words):
            word = words[code]
        elif code == len(words) and previous:
            word = previous + previous[:1]
        else:
            raise ValueError(f"byte {byte}: code {code} refers to a word that is not known yet")
        out.append(word)
        size += len(word)
        if size > max_bytes:
            raise ValueError(f"byte {byte}: decompresses to more than the limit of {max_bytes} bytes")
        if previous and len(words) < 1 << widest:
            words.append(previous + word[:1])
        previous = word
        # The encoder is one word ahead: its next code needs another bit once our table fills this width.
        if len(words) >= 1 << width and width < widest:
            position = group = _next_group(position, group, width)
            width += 1
    return b"".join(out)


def _next_group(position: int, group: int, width: int) -> int:
    """The end of the present group of eight codes of `width` bits, in bits."""
    span = 8 * width
    return group + -(-(position - group) // span) * span
