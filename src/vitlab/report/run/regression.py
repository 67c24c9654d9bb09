"""Regression reports: predicted against true values, errors, and the worst mistakes."""

from collections.abc import Iterator

import numpy as np

from vitlab.evaluation.regression import RegressionEvaluation, ValueMetrics
from vitlab.report.html import Html, element, figure, table
from vitlab.report.numbers import percent, write_number
from vitlab.report.run.content import Report, Section, View
from vitlab.report.run.images import draw_mistakes, wrong_values_in
from vitlab.report.svg import Axis, Frame, draw_strip, draw_value, nice_ticks, ticks_within

DOTS = 2000
"""Number of images in a scatter plot; of more, an even sample."""
BARS = 24


def headline(evaluation: RegressionEvaluation, split: str) -> Html:
    """Mean absolute error and its interval, and the share of the variance explained."""
    first = evaluation.values[0]
    low, high = first.mae_interval
    of = "" if len(evaluation.values) == 1 else f" of {first.label}"
    return draw_value(
        f"{first.mae:.4g}",
        f"mean absolute error{of} on {evaluation.images:,} {split} images",
        f"95% interval {low:.4g} to {high:.4g}; always the mean: {first.mean_mae:.4g}",
        _share(first),
    )


def _share(item: ValueMetrics) -> Html | None:
    if item.r2 is None or item.r2_interval is None:
        return None
    return draw_strip(item.r2, item.r2_interval, 0.0, "R² of always the mean", bounds=(0, 1))


def tiles(evaluation: RegressionEvaluation) -> Iterator[tuple[str, str]]:
    """Further metrics of the first value."""
    first = evaluation.values[0]
    yield "R²", "–" if first.r2 is None else f"{first.r2:.3f}"
    yield "root mean squared error", f"{first.rmse:.4g}"
    yield "rank correlation", "–" if first.spearman is None else f"{first.spearman:.3f}"


def findings(evaluation: RegressionEvaluation) -> Iterator[str]:
    """Main findings, as sentences."""
    for item in evaluation.values:
        if item.mean_mae:
            gain = 1 - item.mae / item.mean_mae
            better = f"{percent(gain, 0)} less" if gain >= 0 else f"{percent(-gain, 0)} more"
            yield f"{item.label}: {better} error than always saying the mean."


def sections(report: Report) -> Iterator[Section]:
    """Predicted against true values, errors, and the worst mistakes."""
    evaluation = report.evaluation
    assert isinstance(evaluation, RegressionEvaluation)
    for i, item in enumerate(evaluation.values):
        truth = evaluation.truth[:, i].double().numpy()
        predicted = evaluation.predicted[:, i].double().numpy()
        plots = element(
            "div",
            _scatter(item.label, truth, predicted),
            _errors(truth, predicted),
            class_="grid two",
        )
        title = "Predicted against true"
        yield (f"{title}: {item.label}" if len(evaluation.values) > 1 else title), (plots,)
    if len(evaluation.values) > 1:
        yield "All values", (_table(evaluation),)
    if report.mistakes:
        note = "What the model said, what is true, and the difference; the farthest off come first."
        yield "The worst mistakes", draw_mistakes(note, report.mistakes)


def _scatter(label: str, truth: np.ndarray, predicted: np.ndarray) -> Html:
    # A few predictions out of range may be clipped at the edge.
    low = min(float(truth.min()), float(np.quantile(predicted, 0.001)))
    high = max(float(truth.max()), float(np.quantile(predicted, 0.999)))
    ticks = nice_ticks(low, high)
    ends = {"ticks": ticks, "write": write_number, "low": ticks[0], "high": ticks[-1]}
    frame = Frame(
        x=Axis(title=f"true {label}", **ends),  # type: ignore[arg-type]
        y=Axis(title=f"predicted {label}", **ends),  # type: ignore[arg-type]
        width=480,
        height=400,
        left=60,
    )
    step = max(1, len(truth) // DOTS)
    dots = (
        element(
            "circle",
            class_="dot",
            cx=frame.across(x),
            cy=frame.up(min(max(y, ticks[0]), ticks[-1])),
            r=2.4,
            fill_opacity=0.45,
        )
        for x, y in zip(truth[::step].tolist(), predicted[::step].tolist(), strict=True)
    )
    line = element(
        "line",
        class_="ideal",
        x1=frame.across(ticks[0]),
        x2=frame.across(ticks[-1]),
        y1=frame.up(ticks[0]),
        y2=frame.up(ticks[-1]),
    )
    return figure(
        "Each image",
        frame.draw(line, *dots, label="Predicted values against true ones"),
        caption="On the dashed line the model is right.",
    )


def _errors(truth: np.ndarray, predicted: np.ndarray) -> Html:
    error = predicted - truth
    limit = float(np.quantile(np.abs(error), 0.995)) or 1.0
    counts, edges = np.histogram(np.clip(error, -limit, limit), bins=BARS, range=(-limit, limit))
    ticks = nice_ticks(0, max(int(counts.max()), 1))
    across = ticks_within(-limit, limit, 5)
    frame = Frame(
        x=Axis(
            title="predicted less true", ticks=across, write=write_number, low=-limit, high=limit
        ),
        y=Axis(title="images", ticks=ticks, write=write_number, low=0, high=ticks[-1]),
        height=400,
    )
    bars = (
        element(
            "rect",
            class_="right",
            x=frame.across(float(start)) + 0.5,
            y=frame.up(int(count)),
            width=frame.across(float(end)) - frame.across(float(start)) - 1,
            height=frame.up(0) - frame.up(int(count)),
        )
        for count, start, end in zip(counts, edges, edges[1:], strict=False)
    )
    bias = float(error.mean())
    return figure(
        "How far off",
        frame.draw(*bars, label="Number of images by error"),
        caption=f"On average {bias:+.3g}: too {'high' if bias > 0 else 'low'}.",
    )


def _table(evaluation: RegressionEvaluation) -> Html:
    rows = (
        (
            item.label,
            *(
                "–" if value is None else f"{value:.4g}"
                for value in (item.mae, item.rmse, item.r2, item.spearman)
            ),
        )
        for item in evaluation.values
    )
    return table(("value", "MAE", "RMSE", "R²", "rank correlation"), rows)


VIEW = View(
    headline=headline, tiles=tiles, findings=findings, sections=sections, mistakes=wrong_values_in
)
