"""Everything that panels are asked of, started once: it takes a minute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from aie_ebpf import prerequisites
from demo.monitoring import Job, MonitoringError, executable, prometheus
from tests.e2e.programs import engine_view, eventually
from tests.fakes.cuda_stand_in import StandIn
from tests.faultlab.clients import Clients
from tests.faultlab.programs import free_port
from tests.integration.dashboards.monitored import Monitored
from tests.integration.dashboards.situations import OTHERS, Broken, Hooked, Place, Probed, gpus, limits, others, plain

LOAD: Final = 1.0
"""Requests a second."""
_GPUS_IN_ALL: Final = 17
"""Eight that are well, eight of which some are not, and that of the engine with hooks."""
_WITH_GPUS: Final = 3
"""The agents of these."""


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    """Everything, with the faults already there. What takes longest begins first. It keeps a core busy, so it ends with the file
    that asks it: for a session it ran beside all tests that came after."""
    try:
        executable("prometheus")
    except MonitoringError as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        place = Place(tmp_path_factory.mktemp("agents"), stack)
        engine, broken = place.engine(), Broken(place)
        hooked = Hooked(place)
        can_probe = not prerequisites.unmet(prerequisites.check())
        probed = Probed(place, StandIn(tmp_path_factory.mktemp("cuda"))) if can_probe else None
        limited = limits(place)
        hooked.ask()
        url = engine.url()
        stack.enter_context(Clients(url)).send(LOAD)
        agents = {
            "plain": plain(place, url),
            "gpus": gpus(place, url, engine.pid),
            "faults": broken.agent,
            "hooks": hooked.agent,
            "others": others(place, OTHERS),
            **({"probes": probed.agent} if probed is not None else {}),
            **({"limits": limited} if limited is not None else {}),
        }
        targets = tuple(agent.url().removeprefix("http://") for agent in agents.values())
        alone = (url.removeprefix("http://"), f"127.0.0.1:{free_port()}")
        server = stack.enter_context(prometheus(place.directory / "prometheus", [Job("aie", targets), Job("alone", alone)]))
        made = Monitored(server, agents, broken, hooked)
        eventually(lambda: len(server.query("aie_gpu_xid_errors_total{xid='79'}")) == _GPUS_IN_ALL)
        eventually(lambda: len(server.query("aie_gpu_xid_source_up{source='nvml_events'} == 1")) == _WITH_GPUS)
        broken.break_it()
        if probed is not None:
            eventually(lambda: _sees_cuda(probed.agent.url()), timeout_s=120.0)
            probed.cuda.begin()
        yield made


def _sees_cuda(url: str) -> bool:
    view = engine_view(url, "cuda")
    states = {each.set: each.state for each in view.coverage} if view is not None else {}
    return all(states.get(name) == "on" for name in ("cuda_memory", "cuda_sync", "cuda_copy"))
