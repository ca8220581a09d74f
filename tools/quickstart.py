"""The whole path in one command: raw text to a served model, each stage proving that it was right."""

import json
import math
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import prepare_data
from run_config import RunConfig, RunConfigError, load_run_config
from tool_command import ToolCommand

TOOLS = Path(__file__).parent
CONFIG = TOOLS.parent / "configs" / "tiny.yaml"
OVERLAP = 5
"""Steps run beyond the checkpoint before the stop: the values that the resumed run must meet again."""


@dataclass(frozen=True)
class Stage:
    """A finished stage: how long it took, the figure that proves it, and where its result lies."""

    name: str
    seconds: float
    figure: str
    path: str


class ProofError(RunConfigError):
    """A figure that proves a stage is wrong."""


def collect_text(config: RunConfig) -> tuple[str, Path]:
    """Stage text."""
    inputs = prepare_data.prepare_text(config)
    paths = [Path(name) for name in inputs]
    size = sum(
        p.stat().st_size for name in paths for p in ([name] if name.is_file() else name.rglob("*")) if p.is_file()
    )
    if config.run.text == "system" and size < 3e6:
        raise ProofError(f"text: 3 MB or more expected, found {size / 1e6:.1f} MB")
    return f"{size / 1e6:.1f} MB of raw text", paths[0]


def train_tokenizer(config: RunConfig) -> tuple[str, Path]:
    """Stage tokenizer."""
    tokenizer = prepare_data.prepare_tokenizer(config, prepare_data.prepare_text(config))
    probe = "Return a new array; naïve café, 人工智能 <|endoftext|> 12345\n\tindent"
    if tokenizer.decode(tokenizer.encode(probe)) != probe:
        raise ProofError("tokenizer: a probe text does not come back from its ids")
    return f"{tokenizer.vocab_size} ids, probe text comes back", config.run.tokenizer_path


def build_datasets(config: RunConfig) -> tuple[str, Path]:
    """Stage dataset."""
    import ms_dataprep

    inputs, figures = prepare_data.prepare_text(config), []
    for part in ("train", "validation"):
        folder = prepare_data.prepare_dataset(config, inputs, part)
        ms_dataprep.verify(folder)
        manifest = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        figures.append(f"{manifest['documents']} {part} documents ({manifest['tokens']} tokens)")
        read = sum(source["documents"] for source in manifest["sources"])
        dropped = {reason: n for reason, n in manifest["dropped"].items() if reason != "other_part"}
    reasons = ", ".join(f"{number} {reason}" for reason, number in dropped.items()) or "none"
    return f"{', '.join(figures)} of {read} read (dropped: {reasons}), files verified", config.run.train_path


def train_first_half(config: RunConfig) -> tuple[str, Path]:
    """Stage train: a few steps beyond the halfway checkpoint the process kills itself, as a crash would."""
    run, half = config.run, _halfway(config)
    _tool("pretrain.py", config, "--kill-after", str(half + OVERLAP + 1), expected=-signal.SIGKILL)
    lines = _metrics(run.path)
    shutil.copy(run.path / "metrics.jsonl", run.path / "metrics-uninterrupted.jsonl")
    first, last, expected = lines[0]["loss"], lines[-1]["loss"], math.log(config["model"]["vocab_size"])
    if abs(first - expected) > 0.5:
        raise ProofError(f"train: the first loss should be near ln(vocabulary) = {expected:.2f}, found {first:.2f}")
    if last > first - 1.0:
        raise ProofError(f"train: the loss should fall by 1 nat or more, found {first:.2f} -> {last:.2f}")
    return f"loss {first:.2f} -> {last:.2f} at step {lines[-1]['step']}", run.checkpoints_path


def resume_training(config: RunConfig) -> tuple[str, Path]:
    """Stage resume: a new process goes on from the checkpoint and must meet the uninterrupted losses exactly."""
    run, half = config.run, _halfway(config)
    before = {line["step"]: line["loss"] for line in _metrics(run.path, "metrics-uninterrupted.jsonl")}
    _tool("pretrain.py", config)
    after = {line["step"]: line["loss"] for line in _metrics(run.path)}
    for step in range(half + 1, half + OVERLAP + 1):
        if before[step] != after[step]:
            raise ProofError(f"resume: loss of step {step} is {after[step]!r}, uninterrupted it was {before[step]!r}")
    evaluations = _metrics(run.path, kind="evaluation")
    if not evaluations or evaluations[-1]["perplexity"] >= evaluations[0]["perplexity"]:
        raise ProofError("resume: validation perplexity did not fall")
    begin, end, final = evaluations[0]["perplexity"], evaluations[-1]["perplexity"], after[max(after)]
    figure = (
        f"step {half + 1}: loss {after[half + 1]:.6f}, uninterrupted {before[half + 1]:.6f} "
        f"({OVERLAP} steps bit-exact); then loss {final:.2f}, validation perplexity {begin:.1f} -> {end:.1f}"
    )
    return figure, run.path / "metrics.jsonl"


def convert_weights(config: RunConfig) -> tuple[str, Path]:
    """Stage convert: to Hugging Face's layout and back, bit for bit."""
    target = config.run.path / "huggingface"
    _tool("convert_weights.py", config, "--output", str(target), "--prove", "--overwrite")
    proof = json.loads((target.parent / "conversion.json").read_text(encoding="utf-8"))
    if proof["max_abs_difference"] != 0 or proof["tensors_equal"] != proof["tensors"]:
        raise ProofError(f"convert: the way there and back changed weights: {proof}")
    tensors, logits = proof["tensors"], proof["max_abs_logit_difference"]
    return f"{tensors} of {tensors} tensors bit-equal there and back, logits differ by {logits:g}", target


def export_bundle(config: RunConfig) -> tuple[str, Path]:
    """Stage export: MindIR graphs whose logits are checked against the model's."""
    target = config.run.path / "bundle"
    _tool("export_model.py", config, "--output", str(target), "--overwrite")
    parity = json.loads((target / "bundle.json").read_text(encoding="utf-8"))["parity"]
    return (
        f"logits differ by {parity['max_abs_difference']:.1e} at most (tolerance {parity['tolerance']:g}, relative)",
        target,
    )


def generate_text(config: RunConfig) -> tuple[str, Path]:
    """Stage generate: the bundle alone continues the prompts as the model did when it was trained."""
    run, bundle = config.run, config.run.path / "bundle"
    samples = {line["prompt"]: line["text"] for line in _metrics(run.path, kind="sample")}
    code = (
        "import json, sys, time, ms_export\n"
        "runtime = ms_export.Runtime(sys.argv[1]); prompts = json.loads(sys.argv[2]); n = int(sys.argv[3])\n"
        "runtime.generate_text(prompts, max_new_tokens=2, temperature=0.0)\n"
        "start = time.perf_counter(); texts = runtime.generate_text(prompts, max_new_tokens=n, temperature=0.0)\n"
        "seconds = time.perf_counter() - start\n"
        "assert not [name for name in sys.modules if name.startswith(('ms_gptmodel', 'ms_trainloop', 'ms_ckpt'))]\n"
        "print(json.dumps({'texts': texts, 'seconds': seconds}))"
    )
    command = [sys.executable, "-c", code, str(bundle), json.dumps(list(samples)), str(run.sample_tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ProofError(f"generate: the bundle's runtime ended with exit code {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    for (prompt, expected), text in zip(samples.items(), answer["texts"], strict=True):
        click.echo(f"  {prompt!r} -> {text!r}")
        if text != expected:
            raise ProofError(
                f"generate: {prompt!r} was continued by {expected!r} in training, by {text!r} from the bundle"
            )
    speed = len(samples) * run.sample_tokens / answer["seconds"]
    return f"{speed:.0f} tokens/s, {len(samples)} texts equal the trained model's", bundle


STAGES: dict[str, Callable[[RunConfig], tuple[str, Path]]] = {
    "text": collect_text,
    "tokenizer": train_tokenizer,
    "dataset": build_datasets,
    "train": train_first_half,
    "resume": resume_training,
    "convert": convert_weights,
    "export": export_bundle,
    "generate": generate_text,
}


def run_stages(config: RunConfig) -> list[Stage]:
    """Runs the stages that are not done yet; each is recorded when it is proven."""
    record = config.run.path / "stages.json"
    fingerprint = config.fingerprint(*config.sections)
    done: list[Stage] = []
    if record.exists():
        saved = json.loads(record.read_text(encoding="utf-8"))
        if saved["fingerprint"] != fingerprint:
            raise RunConfigError(
                f"{config.run.path} was begun with other options or another version; add --fresh to start anew"
            )
        done = [Stage(**stage) for stage in saved["stages"]]
    config.save(config.run.path / "config.yaml")
    for number, (name, run_stage) in enumerate(STAGES.items(), 1):
        if number <= len(done):
            click.echo(f"[{number}/{len(STAGES)}] {name}: done before ({done[number - 1].figure})")
            continue
        click.echo(f"[{number}/{len(STAGES)}] {name} ...")
        start = time.perf_counter()
        figure, path = run_stage(config)
        done.append(Stage(name, round(time.perf_counter() - start, 1), figure, str(path)))
        click.echo(f"[{number}/{len(STAGES)}] {name}: {done[-1].seconds} s, {figure}")
        temporary = record.with_suffix(".tmp")
        temporary.write_text(
            json.dumps({"fingerprint": fingerprint, "stages": [asdict(s) for s in done]}, indent=1), "utf-8"
        )
        temporary.replace(record)
    return done


def write_report(config: RunConfig, stages: list[Stage]) -> Path:
    """Writes the run's report: curves and the table of stages."""
    import ms_trainloop

    output = config.run.path / "report.html"
    rows = [{"stage": s.name, "seconds": s.seconds, "figure that proves it": s.figure, "path": s.path} for s in stages]
    ms_trainloop.write_report([config.run.path], output, summary=rows)
    return output


def _halfway(config: RunConfig) -> int:
    return int(config["train"]["steps"]) // 2


def _metrics(folder: Path, name: str = "metrics.jsonl", kind: str = "train") -> list[dict]:
    lines = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line.get("kind") == kind]


def _tool(name: str, config: RunConfig, *options: str, expected: int = 0) -> None:
    """Runs a tool as its users do; its progress goes to this terminal."""
    command = [sys.executable, str(TOOLS / name), "--config", str(config.run.path / "config.yaml"), *options]
    if (code := subprocess.run(command, check=False).returncode) != expected:
        raise ProofError(f"{name} ended with exit code {code}, expected {expected}; its last lines are above")


def _empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / "config.yaml").exists():
        raise RunConfigError(f"{folder} holds something that is no run; name another folder with --folder")
    shutil.rmtree(folder, ignore_errors=True)


@click.command(cls=ToolCommand, help=__doc__)
@click.option("--input", "inputs", multiple=True, help="Your own text (files, folders, globs); may repeat.")
@click.option("--folder", default="runs/quickstart", show_default=True, help="Where everything is written.")
@click.option("--fresh", is_flag=True, help="Start anew; without it a second call continues where the first stopped.")
@click.option(
    "--set", "changes", multiple=True, metavar="SECTION.KEY=VALUE", help="Change one value of configs/tiny.yaml."
)
def main(inputs: tuple[str, ...], folder: str, fresh: bool, changes: tuple[str, ...]) -> None:
    begin = time.perf_counter()
    config = load_run_config(CONFIG, changes)
    steps = int(config["train"]["steps"])
    config.sections["run"].update(folder=folder, **({"text": list(inputs)} if inputs else {}))
    # Every step is logged, so that resumed steps can be compared one by one; saves fall on the half.
    config.sections["train"].update(
        log_every=1, save_every=steps // 2, evaluate_every=max(1, steps // 4), sample_every=steps // 2
    )
    if fresh:
        _empty(config.run.path)
    config.run.path.mkdir(parents=True, exist_ok=True)
    stages = run_stages(config)
    report = write_report(config, stages)
    click.echo(f"\n{'stage':<10} {'seconds':>8}  figure that proves it")
    for stage in stages:
        click.echo(f"{stage.name:<10} {stage.seconds:>8.1f}  {stage.figure}\n{'':<20} {stage.path}")
    memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e6
    total, now = sum(stage.seconds for stage in stages), time.perf_counter() - begin
    click.echo(f"{'total':<10} {total:>8.1f}  {now:.0f} s in this call, largest process {memory:.1f} GB")
    click.echo(f"report: {report}\nserve it: hatch run ms-export serve {config.run.path / 'bundle'}")


if __name__ == "__main__":
    main()
