"""Models of a few kilobytes on one thread: with more, on a host with other things to do, they mostly wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
