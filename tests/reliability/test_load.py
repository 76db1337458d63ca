"""Many fits at once give the bits of one at a time, and fits one after another keep no memory."""

import warnings

import pytest

from reliability.load import soak, together


@pytest.mark.slow  # forks a process that has threads
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:os.fork:RuntimeWarning")
def test_fits_from_threads_and_processes_have_the_bits_of_serial_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons, and JAX once it was imported, warn of forks beside threads
        found = together(8, seed=0, processes=2)
    assert found == {"calls": 8, "threads_equal": 8, "fork_equal": 8, "spawn_equal": 8}


@pytest.mark.slow
def test_a_short_soak_keeps_no_memory():
    # A fit that kept its tensor would keep 1.7 kB of values alone, and several times that with its tables.
    found = soak(30, seed=0)
    assert found["grown"] < 4 * 2**20, found
