"""Converts a run's newest checkpoint to Hugging Face's layout; --prove goes back and compares every bit, then logits.

The logits, and the output of every layer, of the trained model are held against transformers' own model where that is
installed, else against logits that were stored (--reference): on random ids and on real text, in several lengths, at
several positions, and on packed rows. Where they part, the first layer that differs and the likely cause are named.
"""

import inspect
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np
from run_config import RunConfig, load_run_config
from tool_command import ToolCommand, config_options

TEXT = (
    "The lighthouse keeper climbed the stairs before dawn, trimmed the lamp and wrote the weather into his book: "
    "wind from the north-west, two ships in sight, 14 degrees. Then he made tea and waited for the boat."
)


class OurModel:
    """A network of contract `model` whose weights and config can be exchanged, with every block's output."""

    def __init__(self) -> None:
        self._kept: tuple[dict, Any] | None = None

    def run(self, config: dict, arrays: dict[str, np.ndarray], case: dict[str, np.ndarray]) -> Any:
        """Outputs for a case, or None for a config that the network refuses."""
        import mindspore
        import ms_gptmodel
        from ms_weightconv import Outputs

        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        if self._kept is None or self._kept[0] != config:
            try:
                model = ms_gptmodel.LanguageModel(ms_gptmodel.ModelConfig.from_mapping(config)).set_train(False)
            except ms_gptmodel.ConfigError:
                return None
            self._kept = (dict(config), model)
        model = self._kept[1]
        if set(ms_gptmodel.named_parameters(model)) - {"counter.forward"} != set(arrays):
            return None
        ms_gptmodel.load_weights(model, {name: np.ascontiguousarray(array) for name, array in arrays.items()})
        layers: list[np.ndarray] = []
        batch, length = case["input_ids"].shape

        def keep(cell: Any, inputs: Any, output: Any) -> None:
            rows = output[0] if isinstance(output, tuple) else output
            layers.append(rows.asnumpy().reshape(batch, length, -1).copy())

        handles = [block.register_forward_hook(keep) for block in model.blocks]
        try:
            logits = model(*(mindspore.Tensor(array) for array in case.values())).asnumpy().copy()
        finally:
            for handle in handles:
                handle.remove()
        return Outputs(logits=logits, layers=layers)


class TheirModel:
    """transformers' model of a Hugging Face folder, with every layer's output."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = (
            transformers.AutoModelForMaskedLM if values["model_type"] == "bert" else transformers.AutoModelForCausalLM
        )
        self._model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        number = self._model.config.num_hidden_layers
        lists = [m for m in self._model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == number]
        self._layers = lists[0]
        self.takes_positions = "position_ids" in inspect.signature(self._model.forward).parameters

    def run(self, case: dict[str, np.ndarray]) -> Any:
        """Outputs for a case; each document of a packed row by itself, which is what packing means."""
        from ms_weightconv import Outputs

        if "segment_ids" not in case:
            return self._run(case["input_ids"], case.get("position_ids"))
        rows = []
        for ids, segments in zip(case["input_ids"], case["segment_ids"], strict=True):
            parts = [self._run(ids[None, segments == number], None) for number in np.unique(segments)]
            rows.append((np.concatenate([p.logits for p in parts], 1), [p.layers for p in parts]))
        layers = [
            np.concatenate([np.concatenate([part[n] for part in parts], 1) for _, parts in rows])
            for n in range(len(self._layers))
        ]
        return Outputs(logits=np.concatenate([logits for logits, _ in rows]), layers=layers)

    def _run(self, ids: np.ndarray, positions: np.ndarray | None) -> Any:
        import torch
        from ms_weightconv import Outputs

        layers: list[np.ndarray] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            layers.append((output[0] if isinstance(output, tuple) else output).float().numpy().copy())

        handles = [layer.register_forward_hook(keep) for layer in self._layers]
        more = {} if positions is None else {"position_ids": torch.from_numpy(positions.astype(np.int64))}
        with torch.no_grad():
            logits = self._model(torch.from_numpy(ids.astype(np.int64)), use_cache=False, **more).logits
        for handle in handles:
            handle.remove()
        return Outputs(logits=logits.float().numpy(), layers=layers)


def make_cases(config: dict, text_ids: list[int], *, takes_positions: bool) -> dict[str, dict[str, np.ndarray]]:
    """Inputs by name: random ids of several lengths, text, later positions, two documents in a row."""
    rng, longest = np.random.default_rng(0), min(96, config["max_position_embeddings"])
    cases = {
        f"{length} random ids": {"input_ids": rng.integers(0, config["vocab_size"], (2, length), dtype=np.int32)}
        for length in sorted({1, min(7, longest), longest})
    }
    real = [number for number in text_ids if number < config["vocab_size"]][:longest]
    if real:
        cases[f"{len(real)} ids of text"] = {"input_ids": np.array([real], np.int32)}
    half = longest // 2
    if takes_positions and config["position_kind"] != "alibi" and half > 1:
        ids = rng.integers(0, config["vocab_size"], (1, half), dtype=np.int32)
        late = np.arange(longest - half, longest, dtype=np.int32)[None]
        cases[f"positions {longest - half} to {longest - 1}"] = {"input_ids": ids, "position_ids": late}
    if config["is_causal"] and half > 1:
        ids = rng.integers(0, config["vocab_size"], (1, longest), dtype=np.int32)
        lengths = [half - 1, longest - half + 1]
        cases["two documents in a row"] = {
            "input_ids": ids,
            "position_ids": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])[None],
            "segment_ids": np.repeat(np.arange(1, 3, dtype=np.int32), lengths)[None],
        }
    return cases


def align(config: dict, arrays: dict[str, np.ndarray], cases: dict, expected: dict) -> dict:
    """Differences of every case; where the worst exceeds the tolerance, the first layer that parts and the causes."""
    from ms_weightconv.divergence import compare, find_causes, worst

    model = OurModel()
    compared = {name: compare(model.run(config, arrays, case), expected[name]) for name, case in cases.items()}
    name, comparison = worst(compared)
    result: dict[str, Any] = {
        "cases": {
            key: {
                "largest_logit_difference": each.logits.largest,
                "logit_cosine": each.logits.cosine,
                "largest_layer_differences": [layer.largest for layer in each.layers],
                "layer_cosines": [layer.cosine for layer in each.layers],
            }
            for key, each in compared.items()
        },
        "tolerance": comparison.tolerance,
        "worst_case": name,
        "largest_logit_difference": comparison.logits.largest,
        "agrees": comparison.is_equal,
    }
    if not comparison.is_equal:
        result["first_diverging"] = comparison.first_diverging
        result["likely_causes"] = find_causes(
            config, arrays, lambda c, a: model.run(c, a, cases[name]), expected[name], comparison.tolerance
        )
    return result


def text_ids(tokenizer: Path) -> list[int]:
    """Ids of some English text, none without a tokenizer."""
    if not tokenizer.is_file() or find_spec("tokenizers") is None:
        return []
    from tokenizers import Tokenizer

    return list(Tokenizer.from_file(str(tokenizer)).encode(TEXT).ids)


def read_arrays(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """Config and float32 weights of a folder of contract `model`."""
    import ms_gptmodel

    stored = ms_gptmodel.read_weights(folder / "model.safetensors")
    arrays = {name: array.astype(np.float32) for name, array in stored.items()}
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), arrays


def prove(config: RunConfig, converted: Path, scratch: Path, step: int | None, reference: Path | None) -> dict:
    """Converts back and compares: tensors bit by bit, the logits of both models, and those of a reference."""
    import mindspore
    import ms_gptmodel
    import ms_weightconv
    from trained_model import load_trained_model

    ms_weightconv.convert(converted, scratch, to="mindspore", overwrite=True)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    trained = load_trained_model(config, step)
    returned = ms_gptmodel.LanguageModel(ms_gptmodel.load_config(scratch))
    ms_gptmodel.load_weights(returned, ms_gptmodel.read_weights(scratch / "model.safetensors"))
    before = {name: p.asnumpy() for name, p in ms_gptmodel.named_parameters(trained.model).items()}
    after = {name: ms_gptmodel.named_parameters(returned)[name].asnumpy() for name in before}
    ids = np.random.default_rng(0).integers(0, trained.config.vocab_size, (2, 48), dtype=np.int32)
    first, second = (model.set_train(False)(mindspore.Tensor(ids)).asnumpy() for model in (trained.model, returned))
    proof = {
        "step": trained.step,
        "tensors": len(before.keys() | after.keys()),
        "tensors_equal": sum(name in after and before[name].tobytes() == after[name].tobytes() for name in before),
        "max_abs_difference": max(
            float(np.abs(before[name] - after[name]).max()) for name in before.keys() & after.keys()
        ),
        "max_abs_logit_difference": float(np.abs(first - second).max()),
    }
    alignment = hold_against_reference(scratch, converted, reference)
    return proof | ({"alignment": alignment} if alignment else {})


def hold_against_reference(ours: Path, theirs: Path, reference: Path | None) -> dict | None:
    """The alignment with transformers or with a stored reference; None where there is neither."""
    from ms_weightconv import Outputs

    values, arrays = read_arrays(ours)
    if reference is not None and reference.exists():
        with np.load(reference) as stored:
            names = ("input_ids", "position_ids", "segment_ids")
            case = {name: stored[name] for name in names if name in stored}
            layers = [stored[f"layer_{n}"] for n in range(values["num_hidden_layers"]) if f"layer_{n}" in stored]
            expected = {"stored": Outputs(logits=stored["logits"], layers=layers)}
        return align(values, arrays, {"stored": case}, expected) | {"reference": str(reference)}
    if find_spec("transformers") is None or find_spec("torch") is None:
        return None
    model = TheirModel(theirs)
    cases = make_cases(values, text_ids(theirs / "tokenizer.json"), takes_positions=model.takes_positions)
    expected = {name: model.run(case) for name, case in cases.items()}
    if reference is not None:
        name = next(iter(reversed(cases)))
        layers = {f"layer_{n}": layer for n, layer in enumerate(expected[name].layers)}
        np.savez(reference, **cases[name], logits=expected[name].logits, **layers)
    return align(values, arrays, cases, expected) | {"reference": "transformers"}


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write; default: `huggingface` in the run's.")
@click.option("--step", type=int, help="Checkpoint to convert; default: the newest valid one.")
@click.option("--overwrite", is_flag=True, help="Replace a model's folder once the new one is complete.")
@click.option(
    "--prove", "is_proven", is_flag=True, help="Convert back and compare; writes conversion.json beside the output."
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="Stored logits (.npz) to hold --prove against; written where transformers is installed and it is missing.",
)
def main(
    config_path: Path,
    changes: tuple[str, ...],
    output: Path | None,
    step: int | None,
    overwrite: bool,
    is_proven: bool,
    reference: Path | None,
) -> None:
    config = load_run_config(config_path, changes)

    import ms_weightconv
    from trained_model import find_checkpoint

    options = config.read("convert")
    target = output or config.run.path / "huggingface"
    report = ms_weightconv.convert(
        find_checkpoint(config, step), target, to="huggingface", family=options.family, dtype=options.dtype,
        max_shard_size=options.max_shard_size, overwrite=overwrite, tokenizer=config.run.train_path / "tokenizer.json",
    )  # fmt: skip
    click.echo(f"{target}: {report.num_tensors} tensors, {report.num_parameters} parameters, family {report.family}")
    if is_proven:
        proof = prove(config, target, target.with_name(f"{target.name}-and-back"), step, reference)
        target.with_name("conversion.json").write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
        click.echo(
            f"there and back: {proof['tensors_equal']} of {proof['tensors']} tensors bit-equal, "
            f"logits differ by {proof['max_abs_logit_difference']:g} at most"
        )
        if proof["tensors_equal"] != proof["tensors"]:
            raise click.ClickException("the way there and back changed weights")
        say_alignment(proof.get("alignment"))


def say_alignment(found: dict | None) -> None:
    """Prints what the comparison with the reference found; raises where they part."""
    if found is None:
        click.echo("no reference: install torch and transformers, or give stored logits (--reference)")
        return
    click.echo(
        f"against {found['reference']}: logits differ by {found['largest_logit_difference']:g} at most "
        f"({len(found['cases'])} cases, worst: {found['worst_case']})"
    )
    if not found["agrees"]:
        causes = "; ".join(found["likely_causes"]) or "none of the known mistakes explains it"
        raise click.ClickException(f"first diverging: {found['first_diverging']}; likely cause: {causes}")


if __name__ == "__main__":
    main()
