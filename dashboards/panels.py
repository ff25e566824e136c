"""From a row of a table to a panel of Grafana: what the SDK leaves out (ids, refIds, data sources), and how this project draws."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from typing import Any, Final

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, statetimeline, table, text, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import text as text_models

from dashboards import links
from dashboards.table import Column, Kind, Panel, Step, Word
from dashboards.variables import DATASOURCE

Property = models.DynamicConfigValue
REF_IDS: Final = string.ascii_uppercase
"""RefIds of a panel's queries: A, B, ..."""
_NOW: Final = frozenset({Kind.TABLE, Kind.BARS, Kind.STAT})
"""Kinds that show what is now, for which Prometheus is asked once."""
_NOT_SEEN: Final = "–"
"""In large letters there is no room for more; the description says what it means. A 0 would be a claim."""
_DASHED: Final = common_models.GraphThresholdsStyleMode.DASHED


def build(panel: Panel, identity: int, position: models.GridPos) -> Any:
    """The SDK's builder of a panel; `identity` is unique on its board."""
    made = _DRAW[panel.kind](panel)
    made = made.id(identity).title(panel.title).description(description(panel)).grid_pos(position)
    if panel.kind is Kind.TEXT:
        return made
    made = made.datasource(DATASOURCE).unit(panel.unit)
    for number, query in enumerate(panel.queries):
        made = made.with_target(_target(panel, number, query.expr, query.legend))
    if panel.empty:
        made = made.no_value(_NOT_SEEN if panel.kind is Kind.STAT else panel.empty)
    found = list(links.of_series(panel))
    return made.data_links(found) if found else made


def description(panel: Panel) -> str:
    """What stands behind the i of a panel: the question, what it means when there is nothing, and where to read on."""
    parts = [panel.question]
    if panel.empty:
        parts.append(f"Empty: {panel.empty}.")
    if panel.runbooks:
        pages = ", ".join(f"`{links.page(name)}`" for name in panel.runbooks)
        copy = (
            "a click on a series leads to the agent's copy"
            if links.says_which_agent(panel)
            else "each agent serves them at /runbooks/NAME"
        )
        parts.append(f"Runbooks: {pages}; {copy}.")
    return "\n\n".join(parts)


def _target(panel: Panel, number: int, expr: str, legend: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(expr).ref_id(REF_IDS[number]).datasource(DATASOURCE)
    made = made.editor_mode(prometheus_models.QueryEditorMode.CODE)
    if panel.kind is Kind.HEATMAP:
        return made.range().format(prometheus_models.PromQueryFormat.HEATMAP).legend_format("{{le}}")
    if panel.kind is Kind.TABLE:
        return made.instant().format(prometheus_models.PromQueryFormat.TABLE)
    asked = made.instant() if panel.kind in _NOW else made.range()
    return asked.legend_format(legend or "__auto")


def _thresholds(steps: tuple[Step, ...]) -> builders.ThresholdsConfig:
    made = [models.Threshold(value=step.at, color=step.colour) for step in steps]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _mappings(words: tuple[tuple[str, Word], ...]) -> list[Any]:
    results = {
        value: models.ValueMappingResult(text=word.text, color=word.colour, index=number)
        for number, (value, word) in enumerate(words)
    }
    return [models.ValueMap(options=results)] if results else []


def _lines(panel: Panel) -> Any:
    legend = (
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .calcs([])
    )
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    made = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(tooltip)
        .line_width(1)
        .fill_opacity(30 if panel.stacked else 0)
        .show_points(common_models.VisibilityMode.AUTO if panel.trouble else common_models.VisibilityMode.NEVER)
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    )
    if panel.stacked:
        made = made.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if not panel.signed:
        made = made.min(0)
    if panel.most is not None:
        made = made.max(panel.most)
    if panel.steps:
        made = made.thresholds(_thresholds(panel.steps)).thresholds_style(common.GraphThresholdsStyleConfig().mode(_DASHED))
    for number, colour in enumerate(panel.colours):
        made = made.override_by_query(REF_IDS[number], [_shades(colour)])
    for series, word in panel.words:
        made = made.override_by_regexp(f"^{series}", [_shades(word.colour)])
    return made


def _shades(colour: str) -> Property:
    """Of one colour, so that several engines are told apart and yet belong together."""
    return Property(id_val="color", value={"mode": "shades", "fixedColor": colour})


def _reduced(calculation: str = "lastNotNull") -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs([calculation]).values(False)


def _stat(panel: Panel) -> Any:
    coloured = bool(panel.steps or panel.words)
    made = (
        stat.Panel()
        .reduce_options(_reduced())
        .color_mode(common_models.BigValueColorMode.BACKGROUND if coloured else common_models.BigValueColorMode.NONE)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .text_mode(common_models.BigValueTextMode.AUTO)
        .orientation(common_models.VizOrientation.AUTO)
    )
    if coloured:
        made = made.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
    if panel.steps:
        made = made.thresholds(_thresholds(panel.steps))
    return made.mappings(_mappings(panel.words)) if panel.words else made


def _bars(panel: Panel) -> Any:
    made = (
        bargauge.Panel()
        .reduce_options(_reduced())
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .show_unfilled(False)
        .min(0)
    )
    if panel.most is not None:
        made = made.max(panel.most)
    if panel.steps:
        return made.thresholds(_thresholds(panel.steps)).color_scheme(
            builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)
        )
    return made.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color("blue"))


def _timeline(panel: Panel) -> Any:
    return (
        statetimeline.Panel()
        .mappings(_mappings(panel.words))
        .color_scheme(builders.FieldColor().mode(models.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds((Step(None, "text"),)))
        .show_value(common_models.VisibilityMode.NEVER)
        .merge_values(True)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
        )
    )


def _heatmap(panel: Panel) -> Any:
    colour = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("Blues")
        .steps(32)
        .exponent(0.5)
        .fill("dark-blue")
    )
    axis = heatmap.YAxisConfig().unit(panel.unit).axis_placement(common_models.AxisPlacement.LEFT)
    return heatmap.Panel().calculate(False).color(colour).y_axis(axis).cell_gap(1).repeat("engine").max_per_row(2)


def _text(panel: Panel) -> Any:
    return text.Panel().mode(text_models.TextMode.MARKDOWN).content(panel.text).transparent(True)


def _table(panel: Panel) -> Any:
    made = (
        table.Panel()
        .show_header(True)
        .cell_height(common_models.TableCellHeight.SM)
        .sort_by([common.TableSortByFieldState().display_name(panel.sort).desc(not panel.ascending)])
    )
    for transformation in _rows(panel):
        made = made.with_transformation(transformation)
    for column in panel.columns:
        found = list(_of_column(column))
        if found:
            made = made.override_by_name(column.title, found)
    return made


def _rows(panel: Panel) -> Iterator[models.DataTransformerConfig]:
    """Queries become columns of the rows that have their labels in common; only the columns named are kept, in their order."""
    if len(panel.queries) > 1:
        yield models.DataTransformerConfig(id_val="merge", options={})
    fields = [column.field for column in panel.columns]
    yield models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": fields}})
    order = {column.field: number for number, column in enumerate(panel.columns)}
    names = {column.field: column.title for column in panel.columns}
    yield models.DataTransformerConfig(
        id_val="organize", options={"excludeByName": {}, "indexByName": order, "renameByName": names}
    )
    yield models.DataTransformerConfig(
        id_val="sortBy", options={"fields": {}, "sort": [{"field": panel.sort, "desc": not panel.ascending}]}
    )


def _of_column(column: Column) -> Iterator[Property]:
    if column.unit:
        yield Property(id_val="unit", value=column.unit)
    if column.width:
        yield Property(id_val="custom.width", value=column.width)
    if column.words:
        yield Property(id_val="mappings", value=_mappings(column.words))
    if column.steps:
        steps = [{"value": step.at, "color": step.colour} for step in column.steps]
        yield Property(id_val="thresholds", value={"mode": "absolute", "steps": steps})
    if column.words or column.steps:
        yield Property(id_val="color", value={"mode": "thresholds"})
        yield Property(id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"})
    if column.link:
        yield Property(id_val="links", value=[{"title": links.TITLES[column.link], "url": links.of_row(column.link)}])


_DRAW: Final[dict[Kind, Callable[[Panel], Any]]] = {
    Kind.LINES: _lines,
    Kind.STAT: _stat,
    Kind.TABLE: _table,
    Kind.BARS: _bars,
    Kind.TIMELINE: _timeline,
    Kind.HEATMAP: _heatmap,
    Kind.TEXT: _text,
}
