"""C source of a library with USDT probes, as <sys/sdt.h> would write their notes."""

from __future__ import annotations

import json


def source(moved_by: int = 0, semaphore: bool = True) -> str:
    """Probes `aie:first` and `aie:second`. `moved_by`: how far prelink moved the file since the notes were written."""
    counter = f"semaphore - {moved_by}" if semaphore else "0"

    def note(name: str, label: int, arguments: str) -> str:
        lines = (
            f"{label}90: nop",
            '.pushsection .note.stapsdt,"","note"',
            f".balign 4; .4byte 8, {label}92f-{label}91f, 3",
            '.asciz "stapsdt"',
            f"{label}91: .8byte {label}90b - {moved_by}, _.stapsdt.base - {moved_by}, {counter}",
            f'.asciz "aie"; .asciz "{name}"; .asciz "{arguments}"',
            f"{label}92: .balign 4",
            ".popsection",
            '.pushsection .stapsdt.base,"aG","progbits",.stapsdt.base,comdat',
            ".weak _.stapsdt.base; .hidden _.stapsdt.base",
            ".ifndef _.stapsdt.base",
            "_.stapsdt.base: .space 1; .size _.stapsdt.base, 1",
            ".endif",
            ".popsection",
        )
        text = "".join(json.dumps(line + "\n") for line in lines)  # C's string literals are JSON's here
        return f"  __asm__ volatile({text});\n"

    return (
        'unsigned short semaphore __attribute__((section(".probes"), visibility("hidden"))) = 0;\n'
        f"void probed(void) {{\n{note('first', 1, '-4@%edi')}{note('second', 2, '')}}}\n"
    )
