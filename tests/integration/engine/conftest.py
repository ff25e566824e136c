"""SmolLM2, loaded once by the engine and once by transformers, which reads the same GGUF file in its own way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from oracle import Oracle
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from aie_engine.linear import Layout
from aie_engine.loading import LoadedModel, default_threads, load_model


@pytest.fixture(scope="session")
def loaded() -> Iterator[LoadedModel]:
    before = torch.get_num_threads()
    # As the engine runs. With a thread on every core, any other process makes torch's threads wait for each other.
    torch.set_num_threads(default_threads())
    yield load_model("smollm2")
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def oracle(loaded: LoadedModel) -> Oracle:
    """With the weights as the engine keeps them: in 16 bits, where it does."""
    oracle = _oracle(loaded)
    if loaded.decoder.head.layout is Layout.HALF:
        with torch.no_grad():
            for weight in oracle.model.parameters():
                if weight.dim() == 2:
                    weight.copy_(weight.half())
    return oracle


@pytest.fixture(scope="session")
def oracle_of_the_file(loaded: LoadedModel) -> Oracle:
    """With the weights in fp32, as the file's blocks say them."""
    return _oracle(loaded)


def _oracle(loaded: LoadedModel) -> Oracle:
    folder, file = str(loaded.path.parent), loaded.path.name
    # What from_pretrained(gguf_file=...) does, which besides asks for the accelerate package.
    model = LlamaForCausalLM(AutoConfig.from_pretrained(folder, gguf_file=file)).eval()
    tensors = load_gguf_checkpoint(str(loaded.path), return_tensors=True, model_to_load=model)["tensors"]
    result = model.load_state_dict(tensors, strict=False)
    assert result.missing_keys == ["lm_head.weight"]  # tied
    assert not result.unexpected_keys
    model.tie_weights()
    return Oracle(model, AutoTokenizer.from_pretrained(folder, gguf_file=file))
