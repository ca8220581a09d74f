"""The commands of `ms-ckpt` that write checkpoints anew: `reshard`, `merge` and `convert`."""

from pathlib import Path

import click

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_KINDS = ("checkpoint", "mindspore", "safetensors", "huggingface")
_NEW = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("path", type=_FOLDER)
@click.argument("root", type=_NEW)
@click.option("--ranks", type=click.IntRange(min=1), help="Files to write, split by rows where --split says no other.")
@click.option("--mesh", help="Ranks along each axis of a mesh, such as 2x4; the last is the fastest.")
@click.option(
    "--split", "splits", multiple=True, metavar="PATTERN=AXES",
    help="Which axis of the matching tensors each mesh axis splits, - for none: '*.up.weight=-,0'. Repeatable.",
)  # fmt: skip
@click.option("--plan", type=click.Path(exists=True, path_type=Path), help="Take the layout from a plan (ms-parallel).")
@click.option("--replace", is_flag=True, help="Replace the step if it is in ROOT already.")
def reshard(
    path: Path,
    root: Path,
    ranks: int | None,
    mesh: str | None,
    splits: tuple[str, ...],
    plan: Path | None,
    replace: bool,
) -> None:
    """Write PATH (a checkpoint, or a root: its newest) anew under ROOT, for other ranks; every byte is verified."""
    from ms_ckpt.config import CheckpointConfig
    from ms_ckpt.errors import ConfigError
    from ms_ckpt.folder import open_folder
    from ms_ckpt.layout import layout_of_plan, split_layout
    from ms_ckpt.listing import newest_valid
    from ms_ckpt.resharding import reshard as run
    from ms_ckpt.store import CheckpointStore

    if sum(option is not None for option in (ranks, mesh, plan)) != 1 or (plan is not None and splits):
        raise ConfigError("reshard: give one of --ranks N, --mesh AxB with --split, and --plan FILE")
    sizes = [ranks] if ranks is not None else _numbers(mesh, "x", "--mesh") if mesh is not None else []
    with open_folder(newest_valid(path)) as folder:
        if plan is not None:
            layout = layout_of_plan(plan)
        else:
            shapes = {name: tensor.shape for name, tensor in folder.index.tensors.items()}
            axes = dict(_split(text) for text in splits)
            if ranks is not None:  # rows, but for scalars
                axes |= {name: [0] for name, shape in shapes.items() if shape and not _is_matched(name, axes)}
            layout = split_layout(shapes, sizes, axes)
        written = run(folder, CheckpointStore(root, CheckpointConfig(keep_last=0)), layout, replace=replace)
        amplification = folder.bytes_read / max(
            1, sum(file.bytes - file.header_bytes for file in folder.index.files.values())
        )
    click.echo(f"{written}: {layout.world_size} ranks; read {amplification:.2f} times the tensors' bytes")


@click.command()
@click.argument("root", type=_NEW)
@click.argument("parts", type=_FOLDER, nargs=-1, required=True)
@click.option(
    "--step", type=click.IntRange(min=0), help="Which step; default: the newest of which all parts are valid."
)
@click.option("--values-from", type=click.IntRange(min=0), metavar="RANK", help="Whose values count if they differ.")
@click.option("--replace", is_flag=True, help="Replace the step if it is in ROOT already.")
def merge(root: Path, parts: tuple[Path, ...], step: int | None, values_from: int | None, replace: bool) -> None:
    """Make one checkpoint under ROOT of the PARTS that ranks without a shared disk saved.

    PARTS are part folders, ranks' folders (rank-00000-of-00004), or folders that hold those.
    """
    from ms_ckpt.config import CheckpointConfig
    from ms_ckpt.listing import parts_of_one_step
    from ms_ckpt.part_store import merge_parts
    from ms_ckpt.store import CheckpointStore

    store = CheckpointStore(root, CheckpointConfig(keep_last=0))
    folders = parts_of_one_step(list(parts), step)
    written = merge_parts(store, folders, values_from=values_from, replace=replace)
    click.echo(f"{written}: {len(folders)} parts")


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--to", type=click.Choice(_KINDS), help="What to write; by default as TARGET's suffix says.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Take these tensors only. Repeatable.")
@click.option("--rename", "renames", multiple=True, metavar="OLD=NEW", help="'*=model.*', say. Repeatable.")
@click.option("--dtype", type=click.Choice(["F32", "F16", "BF16", "F64"]), help="What floating tensors become.")
@click.option("--step", type=click.IntRange(min=0), help="The step of a new checkpoint; default: the source's, or 0.")
@click.option(
    "--strategy", type=click.Path(exists=True, path_type=Path),
    help="MindSpore's strategy file (or a folder, one file a stage): SOURCE holds rank_0, rank_1, ...",
)  # fmt: skip
@click.option("--files", default="*", metavar="PATTERN", help="Which file of each rank's folder: '*-2_100.ckpt'.")
@click.option("--max-shard-size", default="5GB", show_default=True, help="Size of a file of a Hugging Face folder.")
@click.option("--replace", is_flag=True, help="Replace TARGET if it exists.")
def convert(
    source: Path,
    target: Path,
    to: str | None,
    only: tuple[str, ...],
    renames: tuple[str, ...],
    dtype: str | None,
    step: int | None,
    strategy: Path | None,
    files: str,
    max_shard_size: str,
    replace: bool,
) -> None:
    """Convert SOURCE into TARGET.

    Each is a checkpoint (or root), a MindSpore .ckpt file, a .safetensors file or a Hugging Face folder; SOURCE also
    MindSpore's files of all ranks of a parallel training.
    """
    from ms_ckpt.conversion import convert as run
    from ms_ckpt.errors import ConfigError
    from ms_ckpt.rules import LoadRules

    kind = to or {".ckpt": "mindspore", ".safetensors": "safetensors"}.get(target.suffix)
    if kind is None:
        raise ConfigError(f"{target}: say what to write: --to {', '.join(_KINDS)}")
    pairs = [text.partition("=") for text in renames]
    if wrong := [old for old, sign, _ in pairs if not sign]:
        raise ConfigError(f"--rename {wrong[0]!r}: expected OLD=NEW")
    written = run(
        source,
        target,
        to=kind,
        rules=LoadRules(only=only or ("*",), renames={old: new for old, _, new in pairs}),
        dtype=dtype,
        step=step,
        strategy=strategy,
        files=files,
        max_shard_bytes=_bytes(max_shard_size),
        replace=replace,
    )
    click.echo(f"{target}: {len(written.tensors)} tensors")


def _bytes(text: str) -> int:
    from ms_ckpt.errors import ConfigError

    units = {"GB": 10**9, "MB": 10**6, "KB": 10**3, "GIB": 1 << 30, "MIB": 1 << 20, "KIB": 1 << 10}
    number, unit = text.rstrip("GMKIBgmkib"), text[len(text.rstrip("GMKIBgmkib")) :].upper()
    if not number.strip().isdecimal() or unit not in ("", "B", *units) or int(number) == 0:
        raise ConfigError(f"--max-shard-size {text!r}: expected a size such as 5GB or 200MB")
    return int(number) * units.get(unit, 1)


def _split(text: str) -> tuple[str, list[int | None]]:
    from ms_ckpt.errors import ConfigError

    pattern, found, axes = text.rpartition("=")
    if not found:
        raise ConfigError(f"--split {text!r}: expected PATTERN=AXES, such as '*.up.weight=-,0'")
    return pattern, [None if axis.strip() == "-" else _numbers(axis, ",", "--split")[0] for axis in axes.split(",")]


def _numbers(text: str, separator: str, option: str) -> list[int]:
    from ms_ckpt.errors import ConfigError

    try:
        return [int(part) for part in text.split(separator)]
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: expected whole numbers with {separator!r} between them") from error


def _is_matched(name: str, patterns: dict[str, list[int | None]]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)
