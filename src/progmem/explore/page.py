"""The page: recordings above their ribbons, similar stretches, labels, a map of all windows.

Each callback reads the place of its page and the session that all pages share, and draws what they
say. Nothing else is kept, so a page can be closed, reloaded or opened twice.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from dash import ALL, Dash, Input, Output, Patch, State, ctx, dcc, html, no_update, set_props
from dash.exceptions import PreventUpdate

from progmem.errors import ArtifactError, InputError
from progmem.explore import figures
from progmem.explore.exports import FILES, export
from progmem.explore.findings import Findings
from progmem.explore.place import Place, Stretch

WATCH = 1000  # ms between two looks at what other pages have changed
KEYS = 9  # classes that a key names
SHOWN = 8  # channels at first
LIVE_WINDOWS = 60  # of a stream in view, at least
LEAST_WINDOWS = 2  # in a stretch that nobody has dragged
GRAPH: Any = {"displayModeBar": False, "scrollZoom": True, "doubleClick": False, "showTips": False}
BLANK: Any = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}


def make_app(findings: Findings, folder: Path) -> Dash:
    """The page of ``findings``, which writes what is asked for into ``folder``."""
    app = Dash(
        "progmem.explore", assets_folder=str(Path(__file__).parent / "assets"), title="progmem",
        update_title="", serve_locally=True, add_log_handler=False,
    )  # fmt: skip
    app.layout = lambda: _layout(findings)
    _moves(app, findings)
    _draws(app, findings)
    _labels(app, findings)
    _files(app, findings, folder)
    return app


def _layout(findings: Findings) -> Any:
    names = findings.names
    channels = findings.channels
    return html.Div(
        className="page",
        children=[
            dcc.Store(id="place", storage_type="session"),
            dcc.Store(id="stretch"),  # what of the place is marked: a pan leaves it as it is
            dcc.Store(id="revision", data=findings.revision),
            dcc.Store(id="map_version"),  # of the map that is drawn
            dcc.Store(id="grown", data=findings.live_revision),
            dcc.Interval(id="watch", interval=WATCH),
            html.Header(
                [
                    html.H1("progmem"),
                    dcc.Dropdown(
                        [{"label": name, "value": i} for i, name in enumerate(names)],
                        findings.home, id="recording", clearable=False, className="recording",
                    ),
                    html.Div(
                        dcc.Dropdown(
                            [{"label": name, "value": i} for i, name in enumerate(channels)],
                            findings.shown[:SHOWN], id="channels", multi=True,
                            placeholder="channels",
                        ),
                        className="channels", hidden=len(channels) < 2,
                    ),
                    html.Span(className="space"),
                    dcc.RadioItems(
                        [
                            {"label": "mark", "value": "select"},
                            {"label": "zoom", "value": "zoom"},
                            {"label": "move", "value": "pan"},
                        ],
                        "select", id="drag", inline=True, className="switch",
                    ),
                    html.Button("whole", id="whole", title="all of the recording (w)"),
                ]
            ),
            html.Main(
                [
                    html.Section(
                        [
                            dcc.Graph(id="signal", config=GRAPH, responsive=True, figure=BLANK),
                            html.Div(
                                [
                                    html.H2("Similar stretches"),
                                    html.Div(id="similar", className="strip"),
                                ],
                                className="similar",
                            ),
                        ],
                        className="left",
                    ),
                    html.Aside(
                        [
                            html.H2("Marked stretch"),
                            html.Div(id="marked", className="marked"),
                            html.Div(
                                [
                                    html.Button("previous", id="previous", title="p"),
                                    html.Button("next", id="next", title="n"),
                                    html.Span(className="space"),
                                    html.Button("no label", id="erase", title="0"),
                                    html.Button("undo", id="undo", title="u"),
                                ],
                                className="row",
                            ),
                            html.Div(id="classes", className="classes"),
                            dcc.Input(
                                id="name", placeholder="a new label, then Enter", debounce=True,
                                maxLength=80, autoComplete="off", value="",
                            ),
                            html.H2("Most useful to label next"),
                            html.Div(id="suggestion"),
                            html.Div(
                                [
                                    html.H2("Map"),
                                    html.Span(className="space"),
                                    dcc.RadioItems(
                                        [
                                            {"label": "states", "value": "states"},
                                            {"label": "labels", "value": "labels"},
                                            {"label": "recordings", "value": "recordings"},
                                        ],
                                        "states", id="colour", inline=True, className="switch",
                                    ),
                                ],
                                className="row",
                            ),
                            dcc.Graph(id="map", config=GRAPH, responsive=True, figure=BLANK),
                        ]
                    ),
                ]
            ),
            html.Footer(
                [
                    html.Span(id="counts"),
                    html.Span(id="message", role="status"),
                    html.Span("write"),
                    *(html.Button(file, id={"type": "export", "file": file}) for file in FILES),
                ]
            ),
        ],
    )  # fmt: skip


def _place(findings: Findings, kept: Any) -> Place:
    return Place.of(kept, findings.parts, findings.home)


def _told(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Say in the page's last line what went wrong; what is on the page stays."""

    @wraps(callback)
    def told(*given: Any) -> Any:
        try:
            return callback(*given)
        except (ArtifactError, InputError, OSError) as error:
            set_props("message", {"children": str(error), "className": "wrong"})
            several = isinstance(ctx.outputs_list, list)
            return [no_update] * len(ctx.outputs_list) if several else no_update

    return told


def _wishes() -> list[tuple[Any, Any]]:
    """What was clicked, pressed or dragged, and its value; several come at once if they are quick.

    What has just been made is among them without a value, and asks for nothing.
    """
    return [
        (ctx.triggered_prop_ids[one["prop_id"]], one["value"])
        for one in ctx.triggered
        if one["value"] or one["value"] == 0
    ]


def _moves(app: Dash, findings: Findings) -> None:
    @app.callback(
        Output("place", "data"),
        Output("stretch", "data"),
        Output("recording", "value"),
        Input("recording", "value"),
        Input("signal", "relayoutData"),
        Input("signal", "selectedData"),
        Input("map", "clickData"),
        Input("next", "n_clicks"),
        Input("previous", "n_clicks"),
        Input("whole", "n_clicks"),
        Input("grown", "data"),
        Input({"type": "go", "to": ALL}, "n_clicks"),
        State("place", "data"),
    )
    @_told
    def move(recording: int, *given: Any) -> tuple[Any, ...]:
        there = place = _place(findings, given[-1])
        for asked, value in _wishes():
            there = moved(findings, there, asked, value) or there
        # what a page begins with is no wish of anybody's: it goes where it was before
        if there == place and ctx.triggered_id is not None:
            raise PreventUpdate
        marked = findings.stretch(there)
        same = ctx.triggered_id is not None and marked == findings.stretch(place)
        return (
            there._asdict(),
            no_update if same else marked,
            no_update if there.recording == recording else there.recording,
        )


def moved(findings: Findings, place: Place, asked: Any, value: Any) -> Place | None:
    """Where a click, a drag or a key leads to; None where it means nothing."""
    parts = findings.parts
    size = LEAST_WINDOWS * findings.idx.window
    if not value and value != 0:
        return None
    if asked == "recording":
        if value == place.recording:
            return None
        return Place.whole(value, parts[value])
    there, axis = parts[place.recording], findings.axes[place.recording]
    if asked == "signal" and "xaxis.range[0]" in value:
        first, last = (axis.sample(value[f"xaxis.range[{i}]"]) for i in (0, 1))
        return place.seeing(first, last, there)
    if asked == "signal" and "range" in value:
        # a drag over any of the rows counts; they share their axis of time
        first, last = sorted(axis.sample(edge) for edge in value["range"]["x"])
        first, last = max(first, there.start), min(last, there.stop)
        return place.marking(first, last) if last > first else place.unmarked()
    if asked == "map":
        row = value["points"][0]["customdata"]
        return place.at(*findings.window_at(row))
    if asked == "next":
        return place.next(parts, size)
    if asked == "previous":
        return place.previous(parts, size)
    if asked == "whole":
        return place.seeing(there.start, there.stop, there)
    if asked == "grown" and findings.live and place.recording == findings.home:
        return place.following(there, LIVE_WINDOWS * findings.idx.window)
    if isinstance(asked, dict) and asked.get("type") == "go":
        number, start, end = map(int, asked["to"].split("-"))
        return place.at(number, start, end, parts[number])
    return None


def _draws(app: Dash, findings: Findings) -> None:
    @app.callback(
        Output("signal", "figure"),
        Input("place", "data"),
        Input("revision", "data"),
        Input("grown", "data"),
        Input("channels", "value"),
        Input("drag", "value"),
    )
    @_told
    def draw(kept: Any, _: int, __: Any, channels: list[int] | None, drag: str) -> Any:
        place = _place(findings, kept)
        if ctx.triggered_id == "grown" and place.recording != findings.home:
            raise PreventUpdate
        recording = findings.recordings[place.recording]
        chosen = sorted(channels or findings.shown[:1])
        figure = figures.signal_figure(
            recording.values, findings.axes[place.recording], (place.first, place.last),
            channels={i: findings.channels[i] for i in chosen},
            ribbons=findings.ribbons(place.recording), marked=place.marked,
        )  # fmt: skip
        figure["layout"]["dragmode"] = drag
        figure["layout"]["selectdirection"] = "h"
        return figure

    @app.callback(
        Output("similar", "children"),
        Output("marked", "children"),
        Input("stretch", "data"),
        State("channels", "value"),
    )
    @_told
    def similar(kept: Any, channels: list[int] | None) -> Any:
        if kept is None:
            hint = "Drag over the recording to mark a stretch; what is like it appears here."
            return html.P(hint, className="faint"), html.P("none", className="faint")
        stretch = Stretch(*kept)
        axis = findings.axes[findings.names.index(stretch.recording)]
        marked = [
            html.P(stretch.recording, className="name"),
            html.P(f"from {axis.text(stretch.start)}"),
            html.P(f"to {axis.text(stretch.end)}, {axis.duration(stretch.end - stretch.start)}"),
        ]
        cards = [
            _card(findings, match, channels or findings.shown[:1])
            for match in findings.similar(stretch)
        ]
        return cards or html.P("nothing else is as long", className="faint"), marked

    @app.callback(
        Output("map", "figure"),
        Output("map_version", "data"),
        Input("revision", "data"),
        Input("colour", "value"),
        State("place", "data"),
        State("map_version", "data"),
    )
    @_told
    def draw_map(_: int, colour: str, kept: Any, former: Any) -> Any:
        version = findings.map_version(colour)
        if version == former:  # five thousand points would be drawn for nothing
            raise PreventUpdate
        place = _place(findings, kept)
        return findings.map_figure(colour, findings.stretch(place)), version

    @app.callback(
        Output("map", "figure", allow_duplicate=True),
        Input("stretch", "data"),
        prevent_initial_call=True,
    )
    @_told
    def ring(kept: Any) -> Any:
        """What is marked, on the map that is there; its points are not drawn anew."""
        change = Patch()
        change["layout"]["shapes"] = findings.rings(None if kept is None else Stretch(*kept))
        return change


def _card(findings: Findings, match: Any, channels: list[int]) -> Any:
    number = findings.names.index(match.recording)
    axis = findings.axes[number]
    return html.Button(
        [
            html.Img(
                src=figures.thumbnail(
                    findings.recordings[number].values, match.start, match.end,
                    channels=channels[:3],
                ),
                alt="",
            ),
            html.Span(match.recording, className="name"),
            html.Span(axis.text(match.start), className="faint"),
        ],
        id={"type": "go", "to": f"{number}-{match.start}-{match.end}"},
        className="card",
        title="go there",
    )  # fmt: skip


def _labels(app: Dash, findings: Findings) -> None:
    @app.callback(
        Output("revision", "data", allow_duplicate=True),
        Output("name", "value"),
        Output("message", "children"),
        Output("message", "className"),
        Input({"type": "class", "name": ALL}, "n_clicks"),
        Input("name", "n_submit"),
        Input("erase", "n_clicks"),
        Input("undo", "n_clicks"),
        Input("place", "data"),  # so that a label waits for a move that is on its way
        State("name", "value"),
        prevent_initial_call=True,
    )
    @_told
    def label(*given: Any) -> Any:
        *_, kept, name = given
        said = [
            labelled(asked, name or "", kept)
            for asked, value in _wishes() if asked != "place" and value
        ]  # fmt: skip
        if not any(said):
            raise PreventUpdate
        return findings.revision, "", ", ".join(filter(None, said)), ""

    def labelled(asked: Any, name: str, kept: Any) -> str:
        """Do what was asked for; what was done, in words."""
        if asked == "undo":
            return findings.undo()
        stretch = findings.stretch(_place(findings, kept))
        if stretch is None:
            raise InputError("mark a stretch first: drag over the recording")
        if asked == "name" and not name.strip():
            return ""
        given = {"name": name, "erase": ""}.get(str(asked))
        if given is None:
            given = findings.session.classes[asked["name"]]
        return findings.name(stretch, given)

    @app.callback(
        Output("revision", "data"),
        Output("grown", "data"),
        Input("watch", "n_intervals"),
        State("revision", "data"),
        State("grown", "data"),
    )
    def watch(looks: int | None, revision: int, grown: int) -> Any:
        """What is new: from another page, from a stream, or because it has been worked out."""
        # what follows from the revision would not begin if the first look gave nothing
        news = not looks or revision != findings.revision
        grew = grown != findings.live_revision
        return (
            findings.revision if news else no_update,
            findings.live_revision if grew else no_update,
        )

    @app.callback(
        Output("classes", "children"),
        Output("suggestion", "children"),
        Output("counts", "children"),
        Input("revision", "data"),
        State("channels", "value"),
        State("classes", "children"),
    )
    @_told
    def panel(_: int, channels: list[int] | None, shown: list[Any] | None) -> Any:
        names = [one["props"]["children"][1]["props"]["children"] for one in shown or []]
        if names == findings.session.classes:  # one made anew would lose a click on its way
            return no_update, offer(channels), findings.counts()
        buttons = [
            html.Button(
                [
                    html.I(style={"background": findings.colour(name)}),
                    html.Span(name, className="name"),
                    html.Kbd(str(i + 1)) if i < KEYS else None,
                ],
                id={"type": "class", "name": i},
                className="class",
            )
            for i, name in enumerate(findings.session.classes)
        ]
        return buttons, offer(channels), findings.counts()

    def offer(channels: list[int] | None) -> Any:
        try:
            found = findings.suggestion()
        except InputError as error:  # there is nothing without a label
            return html.P(str(error), className="faint")
        if found is None:
            return html.P("looking for it …", className="faint")
        return [
            _card(findings, found, channels or findings.shown[:1]),
            html.P(found.why, className="faint"),
        ]


def _files(app: Dash, findings: Findings, folder: Path) -> None:
    @app.callback(
        Output("message", "children", allow_duplicate=True),
        Output("message", "className", allow_duplicate=True),
        Input({"type": "export", "file": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    @_told
    def write(_: Any) -> Any:
        if not ctx.triggered[0]["value"]:
            raise PreventUpdate
        path = folder / ctx.triggered_id["file"]
        export(findings, path)
        return f"written: {path}", ""
