"""transformers as the judge of the engine's numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Oracle:
    """transformers' model and tokenizer."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase

    def next_logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """Logits before each token of `answer`, [len(answer), vocab], in one pass over both and without a cache."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([prompt + answer]), logits_to_keep=len(answer) + 1).logits[0]
        return logits[:-1]
