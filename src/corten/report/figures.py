"""Figures of a result in matplotlib: each takes an optional `ax` and returns it."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from corten.data.printable import unit_sign
from corten.evidence.audit_table import Audit
from corten.report import drawing, evidence
from corten.report.drawing import BLUE, INK, PALE, RUST, SOFT
from corten.report.planes import Plane, default_entry, default_index, labels, planes, title, value_range, width_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from corten.results.intervals import Intervals

Place: TypeAlias = "int | float | str | np.datetime64"
"""An index, or a label, on an axis."""

SHOWN = {"data": "value", "estimate": "value", "width": "width", "propensity": "chance"}
"""What a slice can show, and which colours it has."""


class Plots:
    """The figures of one result: slice, series, coverage, widths, weights, selection. Returned by `Intervals.plot`.

    Called, it draws the result at a glance. All methods draw on the matplotlib axes `ax`, or on a new figure.

    Parameters
    ----------
    result : Intervals
        The result.

    Examples
    --------
    >>> axes = result.plot.slice(time=12)                # doctest: +SKIP
    >>> axes.figure.savefig("slice.png")                 # doctest: +SKIP
    """

    def __init__(self, result: Intervals) -> None:
        self.result = result

    def __call__(self, **where: Place) -> Figure:
        """The result at a glance: data, estimate and width of one slice; or a series, if only one axis is ordered.

        Parameters
        ----------
        **where : int or label
            The slice or the series, by index (``time=12``) or label. Default: one where part of the entries is missing.

        Returns
        -------
        matplotlib.figure.Figure
            Has ``savefig``.
        """
        import matplotlib.pyplot as plt

        axes = self.result.observed.axes
        ordered = [axis.name for axis in axes if axis.kind == "ordered" and axis.length > 1]
        if len(ordered) == 1:
            return cast("Figure", self.series(ordered[0], None, **where).figure)
        if ordered:
            entry = default_entry(self.result)
            fixed = {axis.name: entry[k] for k, axis in enumerate(axes) if axis.name not in ordered}
            where = fixed | where
        figure, panels = plt.subplots(1, 3, figsize=(13.0, 3.8), layout="constrained", sharey=True)
        for ax, show in zip(panels, ("data", "estimate", "width")):
            self.slice(show, ax, **where)
            if ax.get_title() != show:
                figure.suptitle(ax.get_title())
            ax.set_title(show)
            ax.label_outer()
        return figure

    def __repr__(self) -> str:
        return "<Plots: slice, series, coverage, widths, weights, selection>"

    def slice(self, show: str = "estimate", ax: Axes | None = None, **where: Place) -> Axes:
        """One slice as an image; all slices of a result have the same colour scale.

        Missing data and infinite widths are hatched; entries outside the domain are grey.

        Parameters
        ----------
        show : {"estimate", "data", "width", "propensity"}, default "estimate"
            What is shown.
        **where : int or label
            The slice, by index (``time=12``) or label (``time="2019-04-25 06:00"``); all but two axes may be given.
        """
        if show not in SHOWN:
            raise ValueError(f"show is {show!r}; give one of {', '.join(SHOWN)}")
        ax = drawing.axes_for(ax)
        plane, index = self._place(where)
        array, span, hatched, words = self._shown(show)
        slots: list[int | builtins.slice] = list(index)
        slots[plane.rows], slots[plane.columns] = slice(None), slice(None)
        picture, hatch = array[tuple(slots)], hatched[tuple(slots)]
        outside = ~self.result.observed.inside[tuple(slots)]
        if plane.rows > plane.columns:
            picture, hatch, outside = picture.T, hatch.T, outside.T
        ax.set_facecolor("white")
        mesh = ax.pcolormesh(
            np.ma.masked_array(picture, ~np.isfinite(picture) | hatch | outside),
            cmap=drawing.colour_map(SHOWN[show]), vmin=span[0], vmax=span[1], rasterized=True,
        )  # fmt: skip
        drawing.hatch_entries(ax, outside, PALE, "")
        drawing.hatch_entries(ax, hatch & ~outside, "#fbe3d8" if show == "width" else "#f4f1ec", "/////")
        self._frame(ax, plane)
        extend = {"propensity": "neither", "width": "max"}.get(show, "both")
        cast("Figure", ax.figure).colorbar(mesh, ax=ax, label=words, extend=extend)
        rest = [k for k in range(len(index)) if k not in (plane.rows, plane.columns)]
        axes = self.result.observed.axes
        ax.set_title(", ".join(f"{axes[k].name} {labels(axes[k])[index[k]]}" for k in rest) or show)
        return ax

    def series(self, along: str | int | None = None, ax: Axes | None = None, **where: Place) -> Axes:
        """Estimate and intervals along one axis.

        Parameters
        ----------
        along : str or int, optional
            The axis. Default: time, or the axis that the first image leaves free.
        **where : int or label
            Position on the other axes. Default: one where the series is partly observed.
        """
        ax = drawing.axes_for(ax, (7.5, 3.6))
        observed = self.result.observed
        axes = observed.axes
        first = planes(axes)[0]
        others = [k for k in range(len(axes)) if k not in (first.rows, first.columns)]
        k = observed.axis(along) if along is not None else (others[0] if others else first.columns)
        if axes[k].name in where:
            raise ValueError(f"the series runs along {axes[k].name!r}: do not name a place on it")
        index = list(default_entry(self.result))
        for name, value in where.items():
            index[observed.axis(name)] = drawing.index_on(axes[observed.axis(name)], value)
        line = tuple(slice(None) if j == k else index[j] for j in range(len(axes)))
        x = drawing.positions(axes[k])
        estimate, mask = self.result.estimate_array[line], observed.mask[line]
        lower, upper = self.result.lower_array[line], self.result.upper_array[line]
        finite = np.isfinite(lower) & np.isfinite(upper)
        band = f"{self.result.coverage:.4g} interval"
        ax.fill_between(x, lower, upper, where=finite, color=RUST, alpha=0.22, lw=0, label=band)
        ax.plot(x, estimate, color=RUST, lw=1.6, label="estimate")
        ax.plot(x[mask], estimate[mask], ".", color=INK, ms=5, label="observed")
        ax.margins(y=0.06)
        infinite = ~finite & observed.missing[line]
        if infinite.any():
            low, high = ax.get_ylim()
            wide = np.convolve(infinite, np.ones(3), "same") > 0  # so that a single one is visible
            ax.fill_between(x, low, high, where=wide, color="#fbe3d8", lw=0, zorder=0, label="infinite interval")
            ax.set_ylim(low, high)
        rest = ", ".join(f"{axes[j].name} {labels(axes[j])[index[j]]}" for j in range(len(axes)) if j != k)
        ax.set(xlabel=title(axes[k]), ylabel=self._quantity(), title=rest)
        drawing.brief_dates(ax, x)
        drawing.tidy(ax)
        ax.legend(frameon=False, fontsize="small")
        return ax

    def coverage(self, audit: Audit | None = None, ax: Axes | None = None) -> Axes:
        """Coverage found by an audit against nominal coverage, with bars of two standard errors.

        Parameters
        ----------
        audit : Audit, optional
            The result of ``fitted.audit()``. Default: the share of infinite intervals at each coverage is shown.
        """
        ax = drawing.axes_for(ax, (5.0, 4.2))
        rows = evidence.audit_rows(audit)
        if rows:
            level, found, error = (
                np.array([row[key] for row in rows]) for key in ("level", "coverage", "standard_error")
            )
            low = min(level.min(), (found - 2 * error).min()) - 0.03
            ax.plot([low, 1], [low, 1], "--", color=SOFT, lw=1, label="nominal")
            ax.errorbar(
                level, found, yerr=2 * error, fmt="o", color=RUST, capsize=3, label="audit, ± 2 standard errors"
            )
            ax.set(xlabel="nominal coverage", ylabel="coverage found", xlim=(low, 1), ylim=(low, 1.01))
            ax.legend(frameon=False, fontsize="small")
        else:
            curve = evidence.widths_by_coverage(self.result)
            level = np.array([row["coverage"] for row in curve])
            ax.plot(level, [row["infinite_share"] for row in curve], "o-", color=BLUE, ms=4)
            ax.axvline(self.result.coverage, color=SOFT, ls=":", lw=1)
            ax.set(xlabel="nominal coverage", ylabel="share of infinite intervals", title="not audited")
            ax.set_ylim(0, max(ax.get_ylim()[1], 0.02))
        drawing.tidy(ax)
        return ax

    def widths(self, by: str = "propensity", ax: Axes | None = None) -> Axes:
        """Finite widths against the probability of being observed or the depth inside gaps.

        Shares of infinite intervals are written above the curve.

        Parameters
        ----------
        by : {"propensity", "depth"}, default "propensity"
            The horizontal axis; "depth" without a propensity model.
        """
        if by not in ("propensity", "depth"):
            raise ValueError(f'by is {by!r}; give "propensity" or "depth"')
        rows = evidence.widths_by_propensity(self.result) if by == "propensity" else []
        across = "probability of being observed" if rows else "entries to the nearest observed one"
        rows = rows or evidence.widths_by_depth(self.result)
        ax = drawing.axes_for(ax, (6.5, 3.8))
        low, middle, high = (
            np.array([np.nan if row[key] is None else row[key] for row in rows], float)
            for key in ("low", "median", "high")
        )
        place = np.arange(len(rows))
        ax.fill_between(place, low, high, color=RUST, alpha=0.22, lw=0, label="10 % to 90 % quantile")
        ax.plot(place, middle, "o-", color=RUST, ms=4, label="median of finite widths")
        top = float(np.nanmax(high, initial=0.0)) if np.isfinite(high).any() else 1.0
        for k, row in enumerate(rows):
            if row["infinite_share"] > 0:
                ax.annotate(f"{row['infinite_share']:.0%} ∞", (k, 1.06 * top), ha="center", fontsize=6.5, color=BLUE)
        marks = [f"{row['at']:.2g}" if across.startswith("probability") else row["label"] for row in rows]
        ax.set_xticks(place, marks, fontsize="x-small")
        ax.set(xlabel=across, ylabel=f"width{self._in_units()}", ylim=(0, 1.18 * top or 1.0))
        drawing.tidy(ax)
        if rows:
            ax.legend(frameon=False, fontsize="small", loc="lower right")
        return ax

    def weights(self, ax: Axes | None = None) -> Axes:
        """Share of the weight of the calibration entries with the largest weights, and the effective sample size."""
        ax = drawing.axes_for(ax, (5.5, 3.8))
        held = evidence.weight_concentration(self.result)
        ax.set(xlabel="calibration entries, by weight", ylabel="share of the weight", ylim=(0, 1.02))
        drawing.tidy(ax)
        if held is None:
            return drawing.note(ax, "no calibration weights")
        ax.semilogx(held["entries"], held["entries"] / held["count"], "--", color=SOFT, lw=1, label="equal weights")
        ax.semilogx(held["entries"], held["share"], color=RUST, lw=1.8, label="these weights")
        words = f"effective sample size {held['effective']:,.0f} of {held['count']:,}"
        ax.axvline(max(held["effective"], 1.0), color=INK, ls=":", lw=1, label=words)
        ax.legend(frameon=False, fontsize="small", loc="upper left")
        return ax

    def selection(self, what: str | None = None, ax: Axes | None = None) -> Axes:
        """The candidates of one automatic setting and their criterion.

        Parameters
        ----------
        what : str, optional
            Name of the setting. Default: the first with three or more candidates.
        """
        ax = drawing.axes_for(ax, (5.5, 3.8))
        known = [choice for choice in self.result.choices if choice.candidates]
        if what is not None and what not in [choice.what for choice in known]:
            offered = ", ".join(choice.what for choice in known) or "none"
            raise ValueError(f"what is {what!r}; settings with candidates: {offered}")
        wanted = [choice for choice in known if what in (None, choice.what)]
        wanted.sort(key=lambda choice: len(choice.candidates) < 3)
        for choice in wanted:
            names, rows = list(choice.candidates[0]), choice.candidates
            numeric = [key for key in names[1:] if "rank" not in key and all(_is_number(row.get(key)) for row in rows)]
            if not numeric:
                continue
            measure = numeric[0]
            tried = [str(row.get(names[0])) for row in choice.candidates]
            score = np.array([row[measure] for row in choice.candidates], float)
            ax.plot(score, "o-", color=BLUE, ms=4)
            taken = [k for k, one in enumerate(tried) if drawing.bare(one) == drawing.bare(choice.taken)]
            ax.plot(taken, score[taken], "o", color=RUST, ms=9, label=f"chosen: {choice.taken}")
            step = -(-len(tried) // 8)
            ax.set_xticks(range(0, len(tried), step), tried[::step], fontsize="small")
            ax.set(xlabel=names[0], ylabel=measure, title=f"{choice.what}: {choice.because}")
            ax.title.set_fontsize("small")
            drawing.tidy(ax)
            if taken:
                ax.legend(frameon=False, fontsize="small")
            return ax
        return drawing.note(ax, "no setting was chosen among candidates")

    def _place(self, where: dict[str, Place]) -> tuple[Plane, list[int]]:
        """The first plane without the given axes, and an index for each axis."""
        observed = self.result.observed
        named = {observed.axis(name): value for name, value in where.items()}
        left = [plane for plane in planes(observed.axes) if not {plane.rows, plane.columns} & set(named)]
        if not left:
            names = [axis.name for axis in observed.axes]
            raise ValueError(
                f"{', '.join(where)} leave fewer than two of {', '.join(names)}: a slice needs two free axes"
            )
        index = [default_index(observed, k) for k in range(len(observed.axes))]
        for k, value in named.items():
            index[k] = drawing.index_on(observed.axes[k], value)
        return left[0], index

    def _shown(self, show: str) -> tuple[np.ndarray, tuple[float, float], np.ndarray, str]:
        """The array, its colour range over the whole tensor, what is hatched, and the label of the colour bar."""
        result, observed = self.result, self.result.observed
        nothing = np.zeros(observed.shape, bool)
        if show == "propensity":
            chance = result.source.probabilities
            if chance is None:
                raise ValueError("show is 'propensity', but no propensity model was fitted")
            return np.asarray(chance, float), (0.0, 1.0), nothing, "probability of being observed"
        if show == "width":
            width = np.where(observed.mask, np.nan, result.width_array.astype(float))
            bar = f"width at coverage {result.coverage:.4g}{self._in_units()}"
            return width, width_range(result), observed.missing & np.isinf(width), bar
        estimate = result.estimate_array.astype(float)
        hatched = observed.missing if show == "data" else nothing
        return estimate, value_range(estimate), hatched, self._quantity()

    def _frame(self, ax: Axes, plane: Plane) -> None:
        """Ticks, directions and aspect of the axes."""
        tall, wide = self.result.observed.axes[plane.rows], self.result.observed.axes[plane.columns]
        ax.set(xlabel=title(wide), ylabel=title(tall))
        for axis, set_ticks, most in ((wide, ax.set_xticks, 6), (tall, ax.set_yticks, 6)):
            places, words = drawing.ticks_of(axis, most)
            set_ticks(places, words)
        if not plane.right:
            ax.invert_xaxis()
        if not plane.up:
            ax.invert_yaxis()
        if plane.aspect is not None:
            ax.set_aspect(plane.aspect)

    def _quantity(self) -> str:
        observed = self.result.observed
        return f"{observed.attrs.get('long_name') or observed.name or 'value'}{self._in_units()}"

    def _in_units(self) -> str:
        units = self.result.observed.attrs.get("units")
        return f" ({unit_sign(str(units))})" if units else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))
