"""A training run put together from its config: data, model, step, evaluation, samples and checkpoints."""

import json
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import ms_dataprep
import ms_gptmodel
import ms_trainloop
from ms_ckpt import AsyncSaver, CheckpointStore
from ms_dataprep.fingerprint import is_byte_level
from ms_parallel import Rank
from run_config import RunConfig, RunConfigError


def make_model(sections: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The model of a saved config and its parameters, for `ms-trainloop replay --model tools/training_run.py:...`."""
    model = ms_gptmodel.LanguageModel(RunConfig(sections).read("model"))
    return model, ms_gptmodel.named_parameters(model)


class TrainingRun:
    """Everything a run needs, ready to train on this rank."""

    def __init__(self, config: RunConfig, rank: Rank, all_reduce: Callable[[Any], Any] | None = None) -> None:
        """Opens the datasets and builds the model; refuses what does not fit together before any step is taken."""
        self.config, self.rank = config, rank
        self.train_config = config.read("train")
        self.parallel = config.read("parallel")
        self._refuse_what_is_only_planned()
        run = config.run
        if not (run.train_path / "dataset.json").exists():
            raise RunConfigError(
                f"{run.train_path}: no dataset; make one with tools/prepare_data.py or `ms-dataprep build`, "
                "or set run.text and it is made here"
            )
        requested = config.read("model")
        self.train_data = self._open(samples=0, fingerprint=requested.tokenizer_fingerprint)
        manifest = self.train_data.manifest
        if manifest.seq_length > requested.max_position_embeddings:
            raise RunConfigError(
                f"model.max_position_embeddings: {requested.max_position_embeddings} is less than the dataset's "
                f"seq_length {manifest.seq_length}"
            )
        self.model_config = replace(
            requested, tokenizer_fingerprint=manifest.fingerprint, eos_token_id=manifest.special_ids.eod,
            bos_token_id=manifest.special_ids.bos, pad_token_id=manifest.special_ids.pad,
        )  # fmt: skip
        self.validation_data = self._open_validation() if self.train_config.evaluate_every else None
        self.model = ms_gptmodel.LanguageModel(self.model_config, seed=self.train_config.seed)
        self.parameters = ms_gptmodel.named_parameters(self.model)
        self.step = ms_trainloop.TrainStep(
            self.model, self.train_config, parameters=self.parameters,
            all_reduce=all_reduce if rank.world_size > 1 else None, world_size=rank.world_size,
        )  # fmt: skip
        self._evaluator = ms_trainloop.Evaluator(
            self.model, all_reduce=all_reduce if rank.world_size > 1 else None, token_bytes=self._token_bytes()
        )
        self._decoder: Any = None

    def train(
        self, *, kill_after: int | None = None, stop_after: int | None = None, store: Any = None
    ) -> ms_trainloop.TrainResult:
        """Trains to the end, going on from the newest valid checkpoint.

        `kill_after` ends this process by SIGKILL after that step, `stop_after` saves and returns; `store` takes the
        checkpoints in place of the run's own.
        """
        run = self.config.run
        store = store or CheckpointStore(run.checkpoints_path, self.config.read("checkpoint"))
        with AsyncSaver(store) if run.save_in_background else nullcontext(store) as checkpointer:
            return self._train(checkpointer, kill_after, stop_after)

    def _train(self, checkpointer: Any, kill_after: int | None, stop_after: int | None) -> ms_trainloop.TrainResult:
        run = self.config.run

        def on_step(step: int, _: Any) -> None:
            if step == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

        prompts = run.prompts if self.train_config.sample_every and self.rank.rank == 0 else ()
        return ms_trainloop.train(
            self.step,
            self._batches,
            run_dir=run.path,
            checkpointer=checkpointer,
            evaluate=self._evaluate if self.validation_data is not None else None,
            sample=(lambda: self._sample(prompts)) if prompts else None,
            on_step=on_step,
            vocab_size=self.model_config.vocab_size,
            samples_per_epoch=self.train_data.rows,
            tokenizer_fingerprint=self.model_config.tokenizer_fingerprint,
            config={**self.config.sections, "model": asdict(self.model_config)},
            flops_per_token=self._flops_per_token(),
            rank=self.rank.rank,
            stop_after=stop_after,
        )

    def _open(self, *, samples: int, fingerprint: str | None) -> ms_dataprep.Loader:
        return ms_dataprep.load(
            self.config.run.train_path, batch_size=self.train_config.global_batch_size, seed=self.train_config.seed,
            rank=self.rank.rank, world_size=self.rank.world_size, samples=samples, tokenizer_fingerprint=fingerprint,
            vocab_size=self.config["model"].get("vocab_size"),
        )  # fmt: skip

    def _open_validation(self) -> ms_dataprep.Loader | None:
        folder = self.config.run.validation_path
        if not (folder / "dataset.json").exists():
            raise RunConfigError(f"{folder}: no validation dataset; build one, or set train.evaluate_every=0")
        rows = self.train_config.micro_batch_size * self.rank.world_size
        return ms_dataprep.load(
            folder, batch_size=rows, evaluation=True, rank=self.rank.rank, world_size=self.rank.world_size,
            tokenizer_fingerprint=self.model_config.tokenizer_fingerprint, vocab_size=self.model_config.vocab_size,
        )  # fmt: skip

    def _batches(self, samples: int) -> Iterable[Any]:
        return self._open(samples=samples, fingerprint=self.model_config.tokenizer_fingerprint)

    def _evaluate(self) -> ms_trainloop.Evaluation:
        return self._evaluator(self.validation_data, limit=self.train_config.evaluation_batches)

    def _sample(self, prompts: tuple[str, ...]) -> Iterable[tuple[str, str]]:
        tokenizer = ms_dataprep.load_tokenizer(self.config.run.train_path / "tokenizer.json")
        ids = [tokenizer.encode(prompt) for prompt in prompts]
        new = self.config.run.sample_tokens
        if self._decoder is None:
            longest = min(max(map(len, ids)) + new, self.model_config.max_position_embeddings)
            self._decoder = ms_gptmodel.CachedDecoder(self.model, slots=len(prompts) + 1, max_length=longest)
        options = ms_gptmodel.GenerationConfig(max_new_tokens=new, temperature=0.0)
        for prompt, found in zip(prompts, ms_gptmodel.generate(self._decoder, ids, options), strict=True):
            yield prompt, tokenizer.decode(found.ids)

    def _flops_per_token(self) -> float | None:
        """PaLM's count (appendix B); None for experts, of which a token meets only some."""
        config = self.model_config
        if config.num_experts:
            return None
        matrices = {name: p for name, p in self.parameters.items() if len(p.shape) == 2 and "embedding" not in name}
        weights = sum(p.shape[0] * p.shape[1] for p in matrices.values())
        if config.tie_word_embeddings:
            weights += config.vocab_size * config.embedding_size
        width = config.num_attention_heads * config.head_dim
        return 6.0 * weights + 12.0 * config.num_hidden_layers * width * self.train_data.manifest.seq_length

    def _token_bytes(self) -> list[int] | None:
        """Bytes of each id, where the tokenizer writes one character for a byte; otherwise they are not known."""
        path = self.config.run.train_path / "tokenizer.json"
        if not path.is_file() or not is_byte_level(json.loads(path.read_text(encoding="utf-8"))):
            return None
        tokenizer, special = ms_dataprep.load_tokenizer(path), self.train_data.manifest.special_ids
        special_ids = {special.eod, special.bos, special.pad}
        tokens = ["" if i in special_ids else tokenizer.token(i) or "" for i in range(self.model_config.vocab_size)]
        return [len(token) for token in tokens]

    def _refuse_what_is_only_planned(self) -> None:
        """Only data parallelism is trained here; other meshes can be planned, and are refused rather than ignored."""
        for axis in ("tensor", "pipeline", "context", "expert"):
            if (size := getattr(self.parallel, axis)) != 1:
                raise RunConfigError(
                    f"parallel.{axis}: {size}; tools/pretrain.py trains data-parallel only, set it to 1 "
                    "(`ms-parallel plan` plans and checks such meshes)"
                )
        if self.parallel.data not in (0, self.rank.world_size):
            raise RunConfigError(
                f"parallel.data: {self.parallel.data}, but this job has {self.rank.world_size} workers; "
                f"start it with --workers {self.parallel.data}, or set parallel.data=0"
            )
        for key, wanted in (
            ("recompute", "none"),
            ("optimizer_sharding", False),
            ("engine", "spmd"),
            ("micro_batches", 1),
        ):
            if (found := getattr(self.parallel, key)) != wanted:
                raise RunConfigError(
                    f"parallel.{key}: {found!r} is not executed by tools/pretrain.py; set it to {wanted}"
                )
