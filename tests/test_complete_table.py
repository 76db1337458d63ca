"""A long table in, the same rows out with estimate, lower and upper; time folded into day and slot and back."""

import numpy as np
import pandas as pd
import pytest

import corten

PLAIN = corten.ConformalCompleter("tucker", "uniform", "random")


def hourly(days=12, stations=("north", "south", "east")):
    times = pd.date_range("2024-03-01", periods=24 * days, freq="h")
    rows = pd.DataFrame([(s, t) for s in stations for t in times], columns=["station", "time"])
    level = rows["station"].map({name: k for k, name in enumerate(stations)})
    rows["speed"] = 10 + level + 3 * np.sin(rows["time"].dt.hour / 24 * 2 * np.pi)
    return rows


def test_rows_come_back_in_order_and_lost_ones_are_added():
    whole = hourly()
    given = whole.sample(frac=0.8, random_state=1)
    given.loc[given.index[:50], "speed"] = np.nan
    filled = corten.complete_table(given, 0.8, value="speed", fold={"time": ("day", "slot")}, completer=PLAIN)
    assert len(filled) == len(whole)
    head = filled.iloc[: len(given)]
    assert (head["station"].to_numpy() == given["station"].to_numpy()).all()
    seen = head["speed"].notna().to_numpy()
    np.testing.assert_allclose(head["estimate"].to_numpy()[seen], head["speed"].to_numpy()[seen])
    assert filled[["estimate", "lower", "upper"]].notna().all().all()
    truth = filled.merge(whole, on=["station", "time"], suffixes=("", "_true"))
    gap = truth["speed"].isna()
    assert np.abs(truth["estimate"] - truth["speed_true"])[gap].mean() < 0.5


def test_a_column_of_the_answer_s_name_is_refused():
    frame = hourly(4)
    frame.loc[::5, "speed"] = np.nan
    with pytest.raises(ValueError, match="estimate"):
        corten.complete_table(
            frame.assign(estimate=1.0), value="speed", coordinates=["station", "time"], completer=PLAIN
        )


def test_repeated_rows_are_averaged_with_a_warning():
    frame = hourly(4)
    frame.loc[::5, "speed"] = np.nan
    given = pd.concat([frame, frame.iloc[1:3].assign(speed=20.0)], ignore_index=True)
    with pytest.warns(UserWarning, match=r"2 row\(s\) have the coordinates of another row.*station, time"):
        filled = corten.complete_table(given, value="speed", completer=PLAIN)
    assert filled["estimate"][1] == filled["estimate"].iloc[-2] == (frame["speed"][1] + 20.0) / 2
