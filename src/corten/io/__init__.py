"""Files and tables in, files and tables out: labels, units and domains kept."""

from corten.io.folding import fold_time, unfold_time
from corten.io.formats import Loaded, check_target, read, write
from corten.io.ionex import read_ionex
from corten.io.madrigal import read_madrigal
from corten.io.table import LongTable, from_table

__all__ = [
    "Loaded", "LongTable", "check_target", "fold_time", "from_table", "read", "read_ionex", "read_madrigal",
    "unfold_time", "write",
]  # fmt: skip
