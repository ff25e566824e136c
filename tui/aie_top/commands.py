"""Everything that a key does: the one table behind the bindings, the help, the footer and the palette.

A row names an action of the app (`action_NAME`); adding a command is adding a row and that method.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple


class Command(NamedTuple):
    """`keys` as Textual names them; `shown` as the help names them. `hint` is the word in the footer, "" for none.

    `hint_in_detail` is the word in the footer of a page on top of the main screen, since some keys do something else there.
    `always` are keys that work also while something else takes the keyboard: the filter, the palette. `for_gpus` are hints
    only where there are GPUs.
    """

    action: str
    keys: tuple[str, ...]
    shown: str
    title: str
    group: str
    hint: str = ""
    hint_in_detail: str = ""
    in_palette: bool = True
    always: tuple[str, ...] = ()
    for_gpus: bool = False


COMMANDS: Final[tuple[Command, ...]] = (
    Command(
        "quit", ("q",), "q", "Quit (ctrl+q and ctrl+c also while you type)", "Program", "quit", "quit", always=("ctrl+q", "ctrl+c")
    ),
    Command("help", ("question_mark", "h", "f1"), "?", "Help: keys and what the columns mean", "Program", "help", "help"),
    Command("pause", ("p", "space"), "p", "Pause, or go on", "View", "pause", "pause"),
    Command("sort", ("s",), "s", "Sort engines by the next column", "View", "sort"),
    Command("reverse", ("S", "upper_s"), "S", "Turn the order round", "View"),
    Command("filter", ("slash",), "/", "Filter engines and GPUs by name, host, model, device or state", "View", "filter"),
    Command("detail", ("enter",), "enter", "All about what is under the cursor", "Move", "detail"),
    Command(
        "gpus",
        ("u",),
        "u",
        "GPU under the cursor of their table: memory, clocks, links, errors, who holds it",
        "Move",
        "GPU",
        "next GPU",
        for_gpus=True,
    ),
    Command("gpu_processes", ("w",), "w", "Who holds GPUs: every process, as a tree", "Move"),
    Command("waits", ("b",), "b", "What blocks each engine: waits, locks, and what of it is not seen", "Move"),
    Command("drift", ("d",), "d", "Whether each engine's answers look as they did, and how far that is compared", "Move"),
    Command("back", ("escape",), "esc", "Back; on the main screen: clear the filter", "Move", "", "back", in_palette=False),
    Command("next_panel", ("tab",), "tab", "Next panel", "Move", "panel", in_palette=False),
    Command("previous_panel", ("shift+tab",), "shift+tab", "Previous panel", "Move", in_palette=False),
    Command("move(1)", ("down", "j"), "j ↓", "Down", "Move", in_palette=False),
    Command("move(-1)", ("up", "k"), "k ↑", "Up", "Move", in_palette=False),
    Command("move(10)", ("pagedown", "ctrl+d"), "pgdn", "A page down", "Move", in_palette=False),
    Command("move(-10)", ("pageup", "ctrl+u"), "pgup", "A page up", "Move", in_palette=False),
    Command("move(-1000000)", ("home", "g"), "home g", "To the top", "Move", in_palette=False),
    Command("move(1000000)", ("end", "G", "upper_g"), "end G", "To the bottom", "Move", in_palette=False),
    Command("theme", ("t",), "t", "Next theme", "View", "theme"),
    Command("picture", ("ctrl+s",), "ctrl+s", "Save a picture of the screen (SVG) in the working directory", "Program"),
    Command("command_palette", ("ctrl+p",), "ctrl+p", "Find a command by name", "Program", "commands", in_palette=False),
)


def bindings() -> list[tuple[str, str, bool]]:
    """Keys, action and whether it takes precedence of each command, as Textual's bindings want them."""
    usual = [(",".join(command.keys), command.action, False) for command in COMMANDS]
    return usual + [(",".join(command.always), command.action, True) for command in COMMANDS if command.always]


def hints(*, in_detail: bool, gpus: bool = False) -> Iterator[tuple[str, str]]:
    """Key and word for the footer, most important first."""
    for command in COMMANDS:
        word = command.hint_in_detail if in_detail else command.hint
        if word and (gpus or not command.for_gpus):
            yield command.shown, word


def groups() -> dict[str, list[Command]]:
    grouped: dict[str, list[Command]] = {}
    for command in COMMANDS:
        grouped.setdefault(command.group, []).append(command)
    return grouped
