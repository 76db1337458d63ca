"""IONEX: written here from the format's columns, read back, damaged, and refused with a line number."""

import gzip
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from corten import io
from corten.data.observed import ObservedTensor
from corten.io.ionex import decompress, read_ionex

LAT, LON = (87.5, 82.5, -2.5), (-180.0, 180.0, 20.0)


def record(content, label):
    return f"{content:<60}{label:<20}"


def epoch(hour, label):
    return record("".join(f"{n:6d}" for n in (2019, 4, 25, hour, 0, 0)), label)


def ionex(maps, rms=None, exponent=-1, heights=(450.0, 450.0, 0.0), lon=LON, declared=None):
    """maps: (times, heights, lat, lon) of stored integers."""
    axis = "  {:6.1f}{:6.1f}{:6.1f}"
    lines = [
        record(f"{1.0:8.1f}            IONOSPHERE MAPS     GPS", "IONEX VERSION / TYPE"),
        record("somebody", "PGM / RUN BY / DATE"),
        epoch(0, "EPOCH OF FIRST MAP"),
        record(f"{len(maps) if declared is None else declared:6d}", "# OF MAPS IN FILE"),
        record("  COSZ", "MAPPING FUNCTION"),
        record(f"{6371.0:8.1f}", "BASE RADIUS"),
        record(axis.format(*heights), "HGT1 / HGT2 / DHGT"),
        record(axis.format(*LAT), "LAT1 / LAT2 / DLAT"),
        record(axis.format(*lon), "LON1 / LON2 / DLON"),
        record("DIFFERENTIAL CODE BIASES", "START OF AUX DATA"),
        record("   01    -3.000     0.010", "PRN / BIAS / RMS"),
        record("DIFFERENTIAL CODE BIASES", "END OF AUX DATA"),
        record("", "END OF HEADER"),
    ]
    if exponent is not None:
        lines.insert(8, record(f"{exponent:6d}", "EXPONENT"))
    for kind, stack in (("TEC", maps), ("RMS", rms if rms is not None else [])):
        for t, volume in enumerate(stack):
            lines.append(record(f"{t + 1:6d}", f"START OF {kind} MAP"))
            lines.append(epoch(12 * t, "EPOCH OF CURRENT MAP"))
            if kind == "RMS":
                lines.append(record(f"{-2:6d}", "EXPONENT"))
            for h, shell in enumerate(volume):
                for i, row in enumerate(shell):
                    place = (LAT[0] + LAT[2] * i, *lon, heights[0] + heights[2] * h)
                    lines.append(record("  " + "".join(f"{n:6.1f}" for n in place), "LAT/LON1/LON2/DLON/H"))
                    lines += ["".join(f"{n:5d}" for n in row[k : k + 16]) for k in range(0, len(row), 16)]
            lines.append(record(f"{t + 1:6d}", f"END OF {kind} MAP"))
    return "\n".join([*lines, record("", "END OF FILE"), ""])


def stored(times=3, shells=1, lons=19):
    maps = np.random.default_rng(0).integers(-5, 900, size=(times, shells, 3, lons))
    maps[..., -1] = maps[..., 0]
    maps[1, 0, 1, 2] = 9999
    return maps


def compress(data, widest=16, clear_at=None):
    """The other side of the decoder: LZW as `compress` packs it, in groups of eight codes."""
    out, group = bytearray(b"\x1f\x9d" + bytes([widest | 0x80])), []
    width, words = 9, {bytes([i]): i for i in range(256)}
    free, word = 257, b""

    def flush(pad):
        if group:
            group.extend([0] * (8 - len(group) if pad else 0))
            bits = sum(code << (k * width) for k, code in enumerate(group))
            out.extend(bits.to_bytes(-(-len(group) * width // 8), "little"))
            group.clear()

    def emit(code):
        group.append(code)
        if len(group) == 8:
            flush(False)

    for one in data:
        longer = word + bytes([one])
        if longer in words:
            word = longer
            continue
        emit(words[word])
        if free < 1 << widest:
            words[longer] = free
            free += 1
            if free > 1 << width and width < widest:
                flush(True)
                width += 1
        elif clear_at is not None and len(out) > clear_at:
            emit(256)
            flush(True)
            width, words, free, clear_at = 9, {bytes([i]): i for i in range(256)}, 257, 2 * len(out)
        word = bytes([one])
    if word:
        emit(words[word])
    flush(False)
    return bytes(out)


@pytest.mark.parametrize("packing", ["", ".gz", ".Z"])
def test_maps_are_read(tmp_path, packing):
    maps = stored()
    raw = ionex(maps, rms=maps // 2).encode()
    path = tmp_path / f"made1150.19i{packing}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".Z": compress}[packing](raw))
    data = read_ionex(path)
    expected = np.where(maps == 9999, np.nan, maps * 0.1)[:, 0].transpose(1, 2, 0)
    assert data.tec.dims == ("lat", "lon", "time") and data.tec.attrs["units"] == "TECU"
    assert np.allclose(data.tec, expected[:, :-1], equal_nan=True)
    assert np.allclose(data.rms, (maps // 2)[:, 0].transpose(1, 2, 0)[:, :-1] * 0.01)
    assert np.array_equal(data.lat, [87.5, 85.0, 82.5]) and data.lon[-1] == 160.0
    assert data.time.values[2] == np.datetime64("2019-04-26T00:00")
    assert data.attrs["mapping_function"] == "COSZ" and data.attrs["base_radius"] == 6371.0
    loaded = io.read(path)
    assert loaded.variable == "tec" and ObservedTensor.of(loaded.data).axes[1].periodic
    assert io.read(path, "rms").data.name == "rms"


def test_exponent_default_heights_and_meridian(tmp_path):
    path = tmp_path / "x.inx"
    maps = stored(shells=2)
    path.write_text(ionex(maps, exponent=None, heights=(350.0, 450.0, 100.0)))
    data = read_ionex(path, keep_repeated_meridian=True)
    assert data.tec.dims == ("height", "lat", "lon", "time") and data.tec.shape == (2, 3, 19, 3)
    assert np.nanmax(np.abs(data.tec.values - maps.transpose(1, 2, 3, 0) * 0.1)) < 1e-9
    path.write_text(ionex(stored(lons=4), exponent=0, lon=(10.0, 40.0, 10.0)))
    region = read_ionex(path)
    assert region.tec.shape == (3, 4, 3) and region.attrs["repeated_meridian"] == "none"


def test_value_missing_at_one_end_is_taken_from_the_other(tmp_path):
    maps = stored()
    maps[0, 0, 0, 0] = 9999
    path = tmp_path / "x.inx"
    path.write_text(ionex(maps))
    assert read_ionex(path).tec.values[0, 0, 0] == pytest.approx(maps[0, 0, 0, -1] * 0.1)


def cut(text, mark, back):
    return text[: text.index(mark) - back]


DAMAGE = {
    "nonsense": (lambda t: "nonsense\n" + t, "line 1: expected the record IONEX VERSION"),
    "version": (lambda t: t.replace("     1.0 ", "     2.0 ", 1), "line 1: expected version 1.0 or 1.1"),
    "no grid": (lambda t: t.replace("LON1 / LON2 /", "LON1 / LON3 /", 1), "record LON1 / LON2 / DLON"),
    "no step": (lambda t: t.replace("-2.5", " 0.0", 1), "an axis whose step"),
    "latitude": (lambda t: t.replace("    85.0-180.0", "    86.0-180.0", 1), "line 20: expected a latitude"),
    "cut in a map": (lambda t: cut(t, "END OF TEC MAP", 400), "expected"),
    "cut at the end": (lambda t: cut(t, "END OF FILE", 100), "expected"),
    "no end": (lambda t: t.replace("END OF FILE", "           "), "END OF FILE"),
    "no epoch": (lambda t: t.replace("EPOCH OF CURRENT MAP", "COMMENT", 1), "EPOCH OF CURRENT MAP before"),
    "month 44": (lambda t: t.replace("  2019     4    25    12", "  2019    44    25    12"), "an epoch"),
    "empty": (lambda t: "", "line 1: expected"),
}


@pytest.mark.parametrize("edit, words", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named_by_file_and_line(tmp_path, edit, words):
    path = tmp_path / "bad.19i"
    path.write_text(edit(ionex(stored())))
    with pytest.raises(ValueError, match=rf"bad\.19i, line \d+: .*(?:{words})|bad\.19i, (?:{words})"):
        read_ionex(path)


def test_fewer_maps_than_declared(tmp_path):
    path = tmp_path / "x.inx"
    path.write_text(ionex(stored(), declared=5))
    with pytest.raises(ValueError, match="5 TEC maps, of which 3 are there"):
        read_ionex(path)
    path.write_text(ionex(stored(), declared=999999))
    with pytest.raises(ValueError, match="max_bytes"):
        read_ionex(path, max_bytes=10**6)


@pytest.mark.parametrize("packing", ["", ".gz", ".Z"])
def test_random_damage_never_escapes(tmp_path, packing):
    text = ionex(stored(), rms=stored() // 3).encode()
    raw = {"": bytes, ".gz": gzip.compress, ".Z": compress}[packing](text)
    path = tmp_path / f"bad.inx{packing}"
    random = np.random.default_rng(1)
    for trial in range(60):
        damaged = bytearray(raw if trial % 2 else raw[: int(random.integers(0, len(raw) - 90))])
        for at in random.integers(0, max(len(damaged), 1), size=trial % 7):
            if damaged:
                damaged[at] = random.integers(256)
        path.write_bytes(damaged)
        try:
            read_ionex(path)
        except (ValueError, OSError) as problem:
            assert "bad.inx" in str(problem)
        else:
            assert trial % 2, "a file cut short was read as if whole"


@pytest.mark.parametrize(
    "size, widest, clear_at", [(0, 16, None), (1, 16, None), (30000, 12, 2000), (200000, 16, None)]
)
def test_decoder_agrees_with_encoder_and_gzip(size, widest, clear_at):
    data = bytes(np.random.default_rng(2).choice(list(b"  0123456789\n"), size=size).astype(np.uint8))
    packed = compress(data, widest, clear_at)
    assert decompress(packed) == data
    program = shutil.which("gzip")
    if program is not None:
        assert subprocess.run([program, "-dc"], input=packed, capture_output=True, check=True).stdout == data
    with pytest.raises(ValueError, match="limit"):
        decompress(compress(b"abc" * 100), max_bytes=10)


def test_shared_global_maps_have_the_shape_this_reader_gives():
    path = Path(__file__).parents[2] / ".." / "shared" / "data" / "tec_uqrg_global_20190425-26.npz"
    if not path.exists():
        pytest.skip("the shared data folder is not here")
    loaded = io.read(path, "tec", axes=("lat", "lon", "time"))
    assert loaded.data.shape == (71, 73, 192) and loaded.data.lon.values[0] == -180.0
