"""The main screen and the pages on top of it. Thin: they give each part its size and the lines from views/."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from aie_top.commands import bindings
from aie_top.cursor import Cursor
from aie_top.layout import plan
from aie_top.panels import PANELS, Page
from aie_top.text import Line, lines_to_ascii
from aie_top.themes import Look
from aie_top.views.chrome import footer_line, header_line
from aie_top.views.history import history_lines
from aie_top.views.tables import Place
from aie_top.widgets import LinesView

if TYPE_CHECKING:
    from aie_top.app import TopApp


class PaintedScreen(Screen[None]):
    """What both kinds have in common: a header, a footer, a look, and being painted from the app's frame."""

    AUTO_FOCUS: ClassVar[str | None] = ""
    # The same as the app's: a Screen of Textual has keys of its own (tab, ctrl+c), which would come first.
    BINDINGS: ClassVar[list[BindingType]] = [Binding(keys, f"app.{action}", show=False) for keys, action, _ in bindings()]
    DEFAULT_CSS: ClassVar[str] = "PaintedScreen { layout: vertical; overflow: hidden; background: $background; }"

    @property
    def top(self) -> TopApp:
        return cast("TopApp", self.app)

    def paint(self) -> None:
        raise NotImplementedError

    def wear(self, look: Look) -> None:
        for view in self.query(LinesView):
            view.wear(look)

    def put(self, name: str, lines: list[Line]) -> None:
        self.query_one(f"#{name}", LinesView).show(lines_to_ascii(lines) if self.top.ascii_only else lines)

    def on_resize(self, _event: events.Resize) -> None:
        self.paint()

    def on_screen_resume(self) -> None:
        self.wear(self.top.look)
        self.paint()


class MainScreen(PaintedScreen):
    """Header, what is wrong, GPUs, engines, what they wait for, who holds GPUs, memory, hosts, histories, footer."""

    DEFAULT_CSS: ClassVar[str] = """
    MainScreen #footer { dock: bottom; }
    MainScreen #prompt { display: none; dock: bottom; height: 1; border: none; padding: 0 1; background: $surface; }
    MainScreen.-filtering #prompt { display: block; }
    MainScreen.-filtering #footer { display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()

    def compose(self) -> ComposeResult:
        names = ("header", *(panel.name for panel in PANELS), "history", "footer")
        yield from (LinesView(self.top.look, id=name) for name in names)
        yield Input(placeholder="words in name, host, model, device or state; enter keeps, esc clears", id="prompt")

    def paint(self) -> None:
        frame, view = self.top.arranged, self.top.view
        width, height = self.size
        if not width or not self.is_mounted:
            return
        self.cursor.follow(frame)
        planned = plan(frame, width, height)
        self.put("header", [header_line(frame, view, width)])
        for panel in PANELS:
            lines = planned.panels[panel.name]
            self._height(panel.name, lines, 0 if panel.name == "problems" else planned.gap)
            at = self.cursor.row(panel.name) if panel is self.cursor.panel else None
            self.put(panel.name, panel.lines(frame, view, Place(width, lines, at)))
        self._height("history", planned.history, planned.gap)
        self.put("history", history_lines(frame, self.cursor.selected, width, planned.history))
        self._height("footer", planned.footer, 0)
        self.put("footer", [footer_line(width, in_detail=False, gpus=bool(frame.gpus))])

    def _height(self, name: str, lines: int, gap: int) -> None:
        self.query_one(f"#{name}", LinesView).give_height(lines, gap)

    def ask_filter(self) -> None:
        self.add_class("-filtering")
        prompt = self.query_one("#prompt", Input)
        prompt.value = self.top.view.filter
        prompt.focus()

    def end_filter(self) -> None:
        self.remove_class("-filtering")
        self.set_focus(None)

    @property
    def is_filtering(self) -> bool:
        return self.has_class("-filtering")

    def on_input_changed(self, event: Input.Changed) -> None:
        if self.is_filtering:
            self.top.set_filter(event.value)

    def on_input_submitted(self) -> None:
        self.end_filter()

    def on_click(self, event: events.Click) -> None:
        """On a row of a table: the cursor goes there. On what is wrong: the panel gets the focus."""
        frame = self.top.arranged
        panel = next((panel for panel in PANELS if event.widget is self.query_one(f"#{panel.name}")), None)
        if panel is None or event.widget is None:
            return
        row = self.cursor.row(panel.name)
        focused = row if panel is self.cursor.panel else None
        on_line = panel.on_line(frame, Place(event.widget.size.width, event.widget.size.height, focused))
        clicked = on_line[event.y] if event.y < len(on_line) else None
        row = row if clicked is None else clicked
        self.cursor.go(frame, panel, row)
        self.paint()


class PageScreen(PaintedScreen):
    """Help, or all about one thing: more lines than fit, scrolled with the keys that move the cursor elsewhere."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page
        self._first = 0

    def compose(self) -> ComposeResult:
        yield from (LinesView(self.top.look, id=name) for name in ("header", "page", "footer"))

    def paint(self) -> None:
        width, height = self.size
        if not width or not self.is_mounted:
            return
        lines = self._page(self.top.arranged, width)
        room = max(height - 2, 1)
        self._first = max(min(self._first, len(lines) - room), 0)
        self.query_one("#page", LinesView).give_height(room, 0)
        self.put("header", [header_line(self.top.arranged, self.top.view, width)])
        self.put("page", lines[self._first : self._first + room])
        below = max(len(lines) - self._first - room, 0)
        self.put("footer", [footer_line(width, in_detail=True, below=below, gpus=bool(self.top.arranged.gpus))])

    def turn(self, following: Callable[[Page], Page]) -> None:
        """To another page in the place of this one, from its top."""
        self._page, self._first = following(self._page), 0
        self.paint()

    def scroll_lines(self, lines: int) -> None:
        self._first = max(self._first + lines, 0)
        self.paint()
