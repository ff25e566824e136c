"""Both ways to attach uprobes: the one that this kernel is best at, and the one that older kernels need."""

from __future__ import annotations

import pytest

from aie_ebpf.uprobe_links import Way

both_ways = pytest.mark.parametrize("way", list(Way), indirect=True)
"""For tests of what depends on the way. All others use the way of this host: the fixture `way`."""
