"""The paper's figures from stored rows, in its arrangement, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.comparison import grouped
from studies.drawing import COLOURS, NAMES, SIZES, conditions, legend, line, panels, whiskers
from studies.files import whole_file
from studies.part_tables import SHORT, Rows, take

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "draw"]

Row = dict[str, Any]


def draw(part: str, data: Rows, folder: Path, kinds: Sequence[str] = (".png", ".svg")) -> list[Path]:
    """Draw the figures of a part that has any and write each in every kind."""
    written: list[Path] = []
    if part not in FIGURES:
        return written
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES[part](data).items():
        for suffix in kinds:
            file = folder / f"{name}{suffix}"
            with whole_file(file) as temporary:
                figure.savefig(temporary, dpi=130, metadata={"Date": None} if suffix == ".svg" else None)
            written.append(file)
    return written


def _coverage(data: Rows) -> dict[str, Figure]:
    made: dict[str, Figure] = {}
    rows = take(data["conformal"], score="absolute")
    methods = ("unweighted", "oracle", "plain", "default")
    for (rank,), some in grouped(rows, "rank").items():
        sizes = sorted({row["d"] for row in some})
        figure, axes = panels(1, 4, sharey=True)
        for panel, (model, noise, title) in zip(axes[0], conditions()):
            for k, method in enumerate(methods):
                for position, d in enumerate(sizes):
                    values = [row["miscoverage"] for row in take(some, model=model, noise=noise, method=method, d=d)]
                    whiskers(
                        panel,
                        position + 0.18 * (k - 1.5),
                        values,
                        COLOURS[method],
                        NAMES.get(method, method) if not position else None,
                    )
            panel.set(title=title, xlabel="d", yscale="log")
            panel.set_xticks(range(len(sizes)), [str(d) for d in sizes])
        axes[0, 0].set_ylabel("average mis-coverage %")
        legend(figure, axes[0, -1])
        made[f"coverage-r{rank}"] = figure
        figure, axes = panels(2, 4, sharex=True)
        for place, (value, title) in enumerate(
            (("coverage90", "coverage of 90 % intervals"), ("half_width90", "half-width"))
        ):
            for panel, (model, noise, above) in zip(axes[place], conditions()):
                for method in methods:
                    line(
                        panel,
                        take(some, model=model, noise=noise, method=method),
                        "d",
                        value,
                        COLOURS[method],
                        NAMES.get(method, method),
                    )
                if not place:
                    panel.axhline(90, color="k", lw=0.6, ls=":")
                    panel.set_title(above)
                else:
                    panel.set_xlabel("d")
                    panel.set_xticks(sizes)
            axes[place, 0].set_ylabel(title)
        legend(figure, axes[0, -1])
        made[f"coverage-width-r{rank}"] = figure
    return made


def _landscape(data: Rows) -> dict[str, Figure]:
    rows = take(data["conformal"], score="absolute")
    figure, axes = panels(2, 2, 4.2, 3.0, sharex=True, sharey=True)
    for panel, (model, noise, title) in zip(axes.ravel(), conditions()):
        for method in ("plain", "default"):
            some = take(rows, model=model, noise=noise, method=method)
            for level, style in ((90, "o-"), (95, "s--")):
                line(
                    panel,
                    some,
                    lambda row: row["rank"] / row["d"],
                    f"coverage{level}",
                    COLOURS[method],
                    f"{NAMES[method]}, {level} %",
                    style,
                )
        for level in (90, 95):
            panel.axhline(level, color="k", lw=0.6, ls=":")
        panel.set(title=title, xlabel="r/d", ylabel="coverage %")
    legend(figure, axes[0, 0])
    return {"landscape": figure}


def _estimation(data: Rows) -> dict[str, Figure]:
    rows = take(data["conformal"], score="absolute", noise="constant")
    figure, axes = panels(1, 2, 4.2, 3.2, sharey=True)
    for panel, model in zip(axes[0], SHORT):
        for method, style in (("plain", "o--"), ("default", "s-")):
            for (d,), some in grouped(take(rows, model=model, method=method), "d").items():
                line(
                    panel,
                    some,
                    lambda row: row["rank"] / row["d"],
                    "relative_error",
                    SIZES.get(d, "k"),
                    f"{NAMES[method]}, d={d}",
                    style,
                )
        panel.set(title=SHORT[model], xlabel="r/d", ylabel="relative error of B")
    legend(figure, axes[0, 0])
    starts, three = panels(1, 3, 3.6, 3.0)
    began = data.get("start", [])
    sizes = sorted({row["d"] for row in began})
    largest = take(began, d=sizes[-1]) if sizes else []
    for model, style in zip(SHORT, ("o-", "s--")):
        for method in ("plain", "default"):
            label, some = f"{SHORT[model]}, {NAMES[method]}", take(began, model=model, method=method, noise_sd=0.1)
            line(three[0, 0], some, "d", "relative_error", COLOURS[method], label, style)
            some = take(largest, model=model, method=method)
            line(three[0, 2], some, "noise_sd", "relative_error", COLOURS[method], label, style)
        some = take(largest, model=model, method="plain")
        line(three[0, 1], some, "noise_sd", "start_error", "k", SHORT[model], style)
    for panel, x, y in zip(
        three[0],
        ("d", "sd of the start's noise", "sd of the start's noise"),
        ("final error", "error of the start", "final error"),
    ):
        panel.set(xlabel=x, ylabel=y)
    three[0, 0].set_xticks(sizes)
    for panel in three[0, 1:]:
        panel.set_title(f"d = {sizes[-1]}" if sizes else "")
    legend(starts, three[0, 0])
    return {"estimation": figure, "estimation-start": starts}


def _scores(data: Rows) -> dict[str, Figure]:
    rows = [row for row in data["conformal"] if row["method"] in ("plain", "default")]
    sizes = sorted({row["d"] for row in rows})
    figure, axes = panels(1, 4)
    kinds = {"absolute": "#0072b2", "normalized": "#d55e00", "signed": "#009e73"}
    for panel, (model, noise, title) in zip(axes[0], conditions()):
        for k, (score, colour) in enumerate(kinds.items()):
            for position, d in enumerate(sizes):
                values = [
                    2 * row["half_width90"]
                    for row in take(rows, model=model, noise=noise, d=d, score=score, method="default")
                ]
                whiskers(panel, position + 0.2 * (k - 1), values, colour, score if not position else None)
        panel.set(title=title, xlabel="d")
        panel.set_xticks(range(len(sizes)), [str(d) for d in sizes])
    axes[0, 0].set_ylabel("width of 90 % intervals")
    legend(figure, axes[0, -1])
    return {"scores-width": figure}


def _misspecified(data: Rows) -> dict[str, Figure]:
    figure, axes = panels(2, 4, sharex=True)
    for place, (value, title) in enumerate(
        (("coverage90", "coverage of 90 % intervals"), ("half_width90", "half-width"))
    ):
        for panel, (model, noise, above) in zip(axes[place], conditions()):
            for method, style in (("plain", "o--"), ("default", "s-")):
                for (d,), some in grouped(
                    take(data["misspecified"], model=model, noise=noise, method=method), "d"
                ).items():
                    line(panel, some, "working_rank", value, SIZES.get(d, "k"), f"{NAMES[method]}, d={d}", style)
            if not place:
                panel.axhline(90, color="k", lw=0.6, ls=":")
                panel.set_title(above)
            else:
                panel.set_xlabel("rank of the completion (truth: 5)")
        axes[place, 0].set_ylabel(title)
    legend(figure, axes[0, -1])
    return {"misspecified": figure}


def _timing(data: Rows) -> dict[str, Figure]:
    figure, axes = panels(2, 2, 4.6, 3.0, sharex=True)
    values = {"seconds_per_iteration": "seconds per iteration", "seconds_to_target": "seconds to the same likelihood"}
    for row, model in zip(axes, SHORT):
        for panel, (value, title) in zip(row, values.items()):
            for (method,), some in grouped(take(data["timing"], model=model), "method").items():
                line(panel, some, "d", value, COLOURS.get(method, "k"), method)
            panel.set(xlabel="d", ylabel=title, yscale="log", title=SHORT[model])
            panel.set_xticks(sorted({row["d"] for row in data["timing"]}))
    legend(figure, axes[0, 0])
    return {"timing": figure}


def _theory(data: Rows) -> dict[str, Figure]:
    rows = take(data["conformal"], score="absolute", noise="adversarial")
    figure, axes = panels(1, 2, 4.2, 3.2)
    for model, style in zip(SHORT, ("o", "s")):
        for method in ("plain", "default"):
            some = take(rows, model=model, method=method)
            label = f"{SHORT[model]}, {NAMES[method]}"
            line(
                axes[0, 0],
                some,
                lambda row: (row["rank"] ** 2 * 3 / row["d"] ** 2) ** 0.5,
                "relative_error",
                COLOURS[method],
                label,
                style,
            )
            x, y = [100 * row["weight_error"] for row in some], [90 - row["coverage90"] for row in some]
            axes[0, 1].plot(x, y, style, color=COLOURS[method], ms=3, label=label, alpha=0.7)
    axes[0, 0].set(xscale="log", yscale="log", xlabel="sqrt(r* d_bar / d*)", ylabel="relative error of B")
    for axis, ticks in ((axes[0, 0].xaxis, (0.05, 0.1, 0.2, 0.4)), (axes[0, 0].yaxis, (0.2, 0.4, 0.8, 1.6))):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    limit = axes[0, 1].get_xlim()[1]
    axes[0, 1].plot([0, limit], [0, limit], "k:", lw=0.8, label="shortfall = Delta (the lemma, Bernoulli)")
    axes[0, 1].set(xlabel="Delta, %", ylabel="shortfall of 90 % intervals, %")
    legend(figure, axes[0, 1])
    return {"theory": figure}


def _setup(data: Rows) -> dict[str, Figure]:
    from corten import simulate
    from studies.estimators import ours

    setting = simulate.paper_setting(40, 3, "ising", "constant", seed=0)
    train = setting.mask & (np.random.default_rng(0).random(setting.mask.shape) < 0.7)
    fitted: Any = ours(train, "ising").fitted.parameter
    shown = {
        "(a) parameter B*": setting.parameter,
        "(b) mask W": np.where(setting.mask, 1.0, -1.0),
        "(c) data X, masked": setting.observed,
        "(d) estimate of B": fitted.to_dense(),
    }
    figure, axes = panels(1, 4, 3.0, 3.0)
    for panel, (title, tensor) in zip(axes[0], shown.items()):
        top = np.nanmax(np.abs(tensor))
        panel.set_facecolor("#dddddd")
        panel.imshow(
            tensor[tensor.shape[0] // 2],
            cmap="gray" if "mask W" in title else "RdBu_r",
            vmin=-top,
            vmax=top,
            interpolation="nearest",
        )
        panel.set(title=title, xticks=[], yticks=[])
    return {"setup": figure}


FIGURES: dict[str, Callable[[Rows], dict[str, Any]]] = {
    "setup": _setup,
    "coverage": _coverage,
    "landscape": _landscape,
    "estimation": _estimation,
    "scores": _scores,
    "misspecified": _misspecified,
    "timing": _timing,
    "theory": _theory,
}
