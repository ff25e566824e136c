"""The boards, a file each, in the order in which people come to them."""

from __future__ import annotations

from typing import Final

from dashboards.boards.agent import AGENT
from dashboards.boards.drift import DRIFT
from dashboards.boards.engine import ENGINE
from dashboards.boards.gpu import GPU
from dashboards.boards.gpus import GPUS
from dashboards.boards.host import HOST
from dashboards.boards.hot import HOT
from dashboards.boards.memory import MEMORY
from dashboards.boards.overview import OVERVIEW
from dashboards.boards.slo import SLO
from dashboards.table import Board

BOARDS: Final[tuple[Board, ...]] = (OVERVIEW, SLO, ENGINE, MEMORY, DRIFT, GPUS, GPU, HOST, HOT, AGENT)
