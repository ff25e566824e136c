"""The Textual application: gets frames from the feed, keeps what the user chose, and runs the commands of commands.py."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import msgspec
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aie_top.commands import COMMANDS, bindings
from aie_top.feed import FrameSource
from aie_top.model import arrange, next_sort
from aie_top.rows import Frame, View
from aie_top.screens import MainScreen, PageScreen, PaintedScreen
from aie_top.themes import LOOKS, Look, next_look
from aie_top.views.drift import drift_page
from aie_top.views.gpu_page import GpuPage, gpu_processes_page
from aie_top.views.pages import help_lines
from aie_top.views.waits import waits_page


class TopApp(App[None]):
    """`--connect`ed agents on a screen. All that it knows of them is the frame it got last."""

    TITLE = "aie-top"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "ctrl+p"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(keys, action, show=False, priority=first) for keys, action, first in bindings()
    ]

    class Arrived(Message):
        """A new frame lies in the mailbox."""

    def __init__(self, source: FrameSource, view: View | None = None, *, theme: str = "dark", ascii_only: bool = False) -> None:
        # Textual's own answer to NO_COLOR is greys, unless the colours are the terminal's: then it really sends none.
        plain = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True if plain else None)
        self._source = source
        self._latest = self._shown = self.arranged = source.first()
        # The newest frame that the screen has not seen. There is one at most: a slow screen leaves frames out, and keys do not
        # wait behind them.
        self._mail: Frame | None = None
        self._mail_lock = threading.Lock()
        self.view = view or View()
        self.ascii_only = ascii_only
        self.look: Look = LOOKS["ansi" if plain else theme]
        for each in LOOKS.values():
            self.register_theme(each.theme)
        self.theme = self.look.theme.name

    def get_default_screen(self) -> Screen[None]:
        return MainScreen()

    def on_mount(self) -> None:
        _quit_when_terminal_goes(self)
        self._source.start(self._deliver)

    def _deliver(self, frame: Frame) -> None:
        """Called in the feed's thread; posting is the one thing that is safe there."""
        with self._mail_lock:
            announced, self._mail = self._mail is not None, frame
        if not announced:
            self.post_message(self.Arrived())

    def on_unmount(self) -> None:
        self._source.stop()

    def on_top_app_arrived(self, _message: Arrived) -> None:
        with self._mail_lock:
            frame, self._mail = self._mail, None
        if _terminal_is_gone(self):
            self.exit(return_code=1)
            return
        if frame is None or not self.is_running:  # while it shuts down, its screens have no parts any more
            return
        self._latest = frame
        if not self.view.paused:
            self._show()

    def set_filter(self, words: str) -> None:
        self._change(filter=words)

    def _change(self, **changes: object) -> None:
        self.view = msgspec.structs.replace(self.view, **changes)
        self._show()

    def _show(self) -> None:
        """Paints the screen on top. A paused one keeps its frame, and still sorts and filters."""
        if not self.view.paused:
            self._shown = self._latest
        self.arranged = arrange(self._shown, self.view)
        if isinstance(self.screen, PaintedScreen):
            self.screen.paint()

    # The commands, in the order of commands.py.

    def action_help(self) -> None:
        if not isinstance(self.screen, PageScreen):
            self.push_screen(PageScreen(lambda _frame, width: help_lines(width)))

    def action_pause(self) -> None:
        self._change(paused=not self.view.paused)

    def action_sort(self) -> None:
        self._change(sort=next_sort(self.view.sort), reverse=False)

    def action_reverse(self) -> None:
        self._change(reverse=not self.view.reverse)

    def action_filter(self) -> None:
        if isinstance(self.screen, MainScreen):
            self.screen.ask_filter()

    def action_detail(self) -> None:
        if isinstance(self.screen, MainScreen) and (page := self.screen.cursor.page(self.arranged)) is not None:
            self.push_screen(PageScreen(page))

    def action_gpus(self) -> None:
        """From the main screen to the GPU under the cursor of their table; from a page to the next GPU."""
        screen, gpus = self.screen, self.arranged.gpus
        if not gpus:
            self.notify("no GPU is seen, or none matches the filter", title="No GPU")
        elif isinstance(screen, MainScreen):
            self.push_screen(PageScreen(GpuPage(gpus[screen.cursor.row("gpus")].key)))
        elif isinstance(screen, PageScreen):
            screen.turn(lambda page: page.next_one(self.arranged) if isinstance(page, GpuPage) else GpuPage(gpus[0].key))

    def action_gpu_processes(self) -> None:
        if isinstance(self.screen, MainScreen):
            self.push_screen(PageScreen(gpu_processes_page))

    def action_waits(self) -> None:
        if isinstance(self.screen, MainScreen):
            self.push_screen(PageScreen(waits_page))

    def action_drift(self) -> None:
        if isinstance(self.screen, MainScreen):
            self.push_screen(PageScreen(drift_page))

    async def action_back(self) -> None:
        screen = self.screen
        if isinstance(screen, MainScreen):
            screen.end_filter()
            self.set_filter("")
        elif isinstance(screen, PageScreen):
            await self.pop_screen()

    def action_next_panel(self) -> None:
        self._step_panel(1)

    def action_previous_panel(self) -> None:
        self._step_panel(-1)

    def _step_panel(self, step: int) -> None:
        if isinstance(self.screen, MainScreen):
            self.screen.cursor.step_panel(self.arranged, step)
            self.screen.paint()

    def action_move(self, lines: int) -> None:
        if isinstance(self.screen, MainScreen):
            self.screen.cursor.move(self.arranged, lines)
            self.screen.paint()
        elif isinstance(self.screen, PageScreen):
            self.screen.scroll_lines(lines)

    def action_theme(self) -> None:
        name = next_look(self.look.theme.name)
        self.look, self.theme = LOOKS[name], name
        if isinstance(self.screen, PaintedScreen):
            self.screen.wear(self.look)

    def action_picture(self) -> None:
        name = f"aie-top-{self.arranged.clock.replace(':', '') or 'empty'}.svg"
        try:
            Path(name).write_text(self.export_screenshot(title="aie-top"), encoding="utf-8")
        except OSError as error:
            self.notify(f"{name}: {error.strerror}", title="No picture", severity="error")
        else:
            self.notify(name, title="Picture saved")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: the same table, and nothing of Textual's own."""
        for command in COMMANDS:
            if command.in_palette:
                yield SystemCommand(command.title, f"key: {command.shown}", lambda action=command.action: self.run_action(action))


def _quit_when_terminal_goes(app: TopApp) -> None:
    """Also under nohup: without a terminal there is nothing to do, and its end would be read again and again."""
    if not app.is_headless:
        signal.signal(signal.SIGHUP, lambda _signal, _stack: os._exit(1))


def _terminal_is_gone(app: TopApp) -> bool:
    if app.is_headless:
        return False
    poll = select.poll()
    poll.register(sys.__stdin__.fileno() if sys.__stdin__ is not None else 0, select.POLLHUP)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
