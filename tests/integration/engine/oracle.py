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

    def logits(self, ids: list[int]) -> torch.Tensor:
        """[len(ids), vocab] for one sequence, without a cache."""
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([ids])).logits[0]
        return logits
