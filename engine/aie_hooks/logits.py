"""What a model's answers look like in a few numbers a request, from which drift is seen: how sure it was, how surprising its
choices were, how large its logits are, how long it talks.

    hooks = LogitsHooks(emitter, model="m")
    answer = hooks.enter()                               # a request; `answer.wanted` says whether it is in the sample
    ...
    stats = token_stats(logits, chosen)                  # in the step, for the rows that are wanted; stays on the device
    ids, numbers = chosen.tolist(), stats.tolist()       # fetched together, so nothing is synchronised that was not before
    answer.add(*numbers[row])                            # once a token
    ...
    answer.end()                                         # one observation of each metric; or answer.discard()

`token_stats` needs torch, the rest of this file does not.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor

    from aie_hooks.emitter import Emitter

# exp of it is 0 in float32, and 0 times it is 0, which 0 times the -inf of a masked logit is not.
_NEGLIGIBLE: Final = -1e4


def token_stats(logits: Tensor, chosen: Tensor) -> Tensor:
    """Of each row of `logits` (rows, vocab), of any float type, and the token chosen there, `chosen` (rows,) of int64:
    log-probability of the chosen token, entropy of the distribution, and log-sum-exp of the logits, in nats. Returns (rows, 3) in
    float32, on the logits' device, without waiting for it.

    Give it the raw logits, before temperature and top-p, which would hide a change of the model. A logit of -inf is a token that
    cannot be chosen. Rows with NaN or +inf give NaN, and so do rows of nothing but -inf.

    Takes five passes over the logits (maximum, shift, exponential, sum, product with the shifted logits) and two temporary tensors
    of their size in float32: 65 us a row of 49152 on one idle CPU core, 160 us on a busy host (`bench/hooks_cost.py`), so give it
    only the rows that are wanted.
    """
    import torch  # here, because an engine of another kind imports this module without having torch

    x = logits.detach().float()
    largest = x.amax(-1, keepdim=True)
    shifted = (x - largest).clamp_(min=_NEGLIGIBLE)
    weights = shifted.exp()
    total = weights.sum(-1)
    log_total = total.log()
    logsumexp = largest.squeeze(-1) + log_total
    # -sum p log p with log p = shifted - log_total. Rounding may leave it a little below 0, where no entropy is.
    entropy = (log_total - torch.linalg.vecdot(weights, shifted) / total).clamp_(min=0.0)
    logprob = x.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - logsumexp
    return torch.stack((logprob, entropy, logsumexp), dim=-1)


class LogitsHooks:
    """For one engine and model; make one at start and call `enter` for each request."""

    def __init__(self, emitter: Emitter, *, model: str, rate: float = 0.1) -> None:
        """`rate` is the share of requests that are looked at. Raises ValueError as handles do."""
        self.emitter = emitter
        self.entropy = emitter.histogram("aie_engine_output_entropy_nats", rate, model=model)
        self.surprisal = emitter.histogram("aie_engine_output_surprisal_nats", rate, model=model)
        self.logsumexp = emitter.histogram("aie_engine_first_token_logsumexp_nats", rate, model=model)
        self.log_length = emitter.histogram("aie_engine_output_log_length", rate, model=model)
        self._rate = rate

    def enter(self) -> LogitsHook:
        """A request arrived."""
        return LogitsHook(self) if self.emitter.sampled(self._rate) else _UNWANTED


class LogitsHook:
    """The answer to one request, sampled. To be called by one thread at a time; calls after the end do nothing."""

    __slots__ = ("_entropy", "_first_logsumexp", "_hooks", "_logprob", "_tokens", "_unusable")

    wanted = True
    """Whether `add` does anything: only then are a token's numbers worth computing."""

    def __init__(self, hooks: LogitsHooks | None) -> None:
        self._hooks = hooks
        self._logprob = self._entropy = 0.0
        self._first_logsumexp: float | None = None
        self._tokens = self._unusable = 0

    def add(self, logprob: float, entropy: float, logsumexp: float) -> None:
        """One token, in the order in which they come. Numbers that are not finite are counted as dropped, and only the length of
        the answer takes notice of their token."""
        if not self._tokens:
            self._first_logsumexp = logsumexp
        self._tokens += 1
        try:
            usable = math.isfinite(logprob + entropy)
        except TypeError:  # no numbers at all
            usable = False
        if usable:
            self._logprob += logprob
            self._entropy += entropy
        else:
            self._unusable += 1

    def discard(self) -> None:
        """The answer was cut off: its client left, its time was over, the engine failed. It leaves no observation, because how
        many leave, and when, says nothing of the model and would look like drift."""
        self._hooks = None

    def end(self) -> None:
        """The answer is complete. One without tokens leaves no observation."""
        hooks, self._hooks = self._hooks, None
        if hooks is None or not self._tokens:
            return
        hooks.log_length.record(math.log(self._tokens))
        hooks.logsumexp.record(self._first_logsumexp)  # type: ignore[arg-type]  # set with the first token
        if self._unusable:
            hooks.emitter.drop("invalid", self._unusable)
        usable = self._tokens - self._unusable
        if usable:
            hooks.entropy.record(self._entropy / usable)
            # Of a certain token the log-probability is 0, or by rounding a little above.
            hooks.surprisal.record(max(0.0, -self._logprob / usable))

    def __enter__(self) -> LogitsHook:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Ends the answer, or discards it for an error that leaves."""
        if kind is None:
            self.end()
        else:
            self.discard()


class _UnwantedHook(LogitsHook):
    """For the requests that are not in the sample."""

    __slots__ = ()

    wanted = False

    def add(self, logprob: float, entropy: float, logsumexp: float) -> None:
        pass

    def discard(self) -> None:
        pass

    def end(self) -> None:
        pass


_UNWANTED: Final = _UnwantedHook(None)
