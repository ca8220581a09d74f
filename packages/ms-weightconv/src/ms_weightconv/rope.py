"""Rotary settings both ways: `rope_theta` with `rope_scaling`, and transformers 5's `rope_parameters`.

The formulas of default attention factors are those of YaRN (Peng et al. 2023) and LongRoPE (Ding et al. 2024) as
transformers computes them.
"""

import math
from collections.abc import Mapping
from typing import Any

from ms_weightconv.contract import ROPE_KEYS, Config
from ms_weightconv.errors import ConfigError
from ms_weightconv.family import Derived, TheirConfig

_OUR_KEYS = ("rope_theta", "rope_scaling", "partial_rotary_factor")


def rotary_keys(
    *,
    theta: float = 10000.0,
    theta_key: str = "rope_theta",
    partial: float | None = None,
    partial_key: str = "partial_rotary_factor",
    local_theta: float | None = None,
    longrope_names: tuple[str, ...] = ("longrope",),
) -> Derived:
    """The rotary keys of a family.

    Args:
        theta: base that transformers takes when the file has none.
        theta_key: the older form's key of the base.
        partial: share of each head that is rotated, when the file says nothing; None where it is always all of it.
        partial_key: the older form's key of that share.
        local_theta: base of sliding layers when the file has none; None for families without one of their own.
        longrope_names: what the family calls LongRoPE; families that know it under another name know no YaRN.
    """
    their_keys = [theta_key, "rope_scaling", "rope_parameters", "original_max_position_embeddings"]
    their_keys += [partial_key] if partial is not None else []
    their_keys += ["rope_local_base_freq"] if local_theta is not None else []

    def read(theirs: TheirConfig) -> Config:
        whole, local = _parts(theirs, has_local=local_theta is not None)
        ours: Config = {"rope_theta": whole.pop("rope_theta", theirs.get(theta_key, theta))}
        share = whole.pop("partial_rotary_factor", theirs.get(partial_key, partial))
        if partial is None and share not in (None, 1, 1.0):
            raise ConfigError(f"partial_rotary_factor: found {share!r:.100}: only a part of each head is rotated")
        ours["partial_rotary_factor"] = 1.0 if share is None else share
        ours["rope_scaling"] = _read_scaling(whole, theirs, longrope_names)
        if local_theta is not None:
            base = local.pop("rope_theta", theirs.get("rope_local_base_freq", local_theta))
            if _read_scaling(local, theirs, longrope_names) is not None:
                raise ConfigError("rope_parameters.sliding_attention: found scaling; sliding layers can have none")
            ours["rope_local_base_freq"] = base
        return ours

    def write(config: Config) -> dict[str, Any]:
        theirs: dict[str, Any] = {theta_key: config["rope_theta"], "rope_scaling": None}
        if config["rope_scaling"]:
            scaling = dict(config["rope_scaling"])
            if scaling["rope_type"] == "longrope":
                original = scaling["original_max_position_embeddings"]
                if len(longrope_names) > 1:
                    theirs["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
                default = _longrope_factor(config["max_position_embeddings"] / original, original)
                if scaling["attention_factor"] == default:
                    del scaling["attention_factor"]  # transformers 4 refuses the key
            theirs["rope_scaling"] = scaling
        if partial is not None:
            theirs[partial_key] = config["partial_rotary_factor"]
        if local_theta is not None:
            theirs["rope_local_base_freq"] = config["rope_local_base_freq"] or config["rope_theta"]
        return theirs

    local_keys = ("rope_local_base_freq",) if local_theta is not None else ()
    return Derived(tuple(their_keys), (*_OUR_KEYS, *local_keys), read, write)


def _parts(theirs: TheirConfig, *, has_local: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of all layers, and those of sliding layers where the family keeps them apart."""
    scaling: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = theirs.get(key)
        if not isinstance(part, Mapping | None):
            raise ConfigError(f"{key}: found {part!r:.100}, expected an object or null")
        scaling |= part or {}
    nested = {key: value for key, value in scaling.items() if isinstance(value, Mapping)}
    if not nested:
        return scaling, {}
    if not has_local or set(nested) - {"full_attention", "sliding_attention"}:
        raise ConfigError("rope_parameters: differ between layers")
    rest = {key: value for key, value in scaling.items() if key not in nested and value is not None}
    return rest | dict(nested.get("full_attention", {})), dict(nested.get("sliding_attention", {}))


def _read_scaling(
    scaling: dict[str, Any], theirs: TheirConfig, longrope_names: tuple[str, ...]
) -> dict[str, Any] | None:
    old_kind = scaling.pop("type", None)
    kind = scaling.pop("rope_type", old_kind) or "default"
    if kind == "default":
        return None
    if kind in longrope_names:
        kind = "longrope"
    if not isinstance(kind, str) or kind not in ROPE_KEYS:
        raise ConfigError(f"rope_scaling: found type {kind!r:.100}; {', '.join(ROPE_KEYS)} can be converted")
    found = {key: value for key, value in scaling.items() if value is not None}
    length = theirs.get("max_position_embeddings")
    if kind in ("linear", "dynamic"):
        found.pop("original_max_position_embeddings", None)  # neither uses it
    else:
        original = theirs.get("original_max_position_embeddings")
        original = found.get("original_max_position_embeddings", length) if original is None else original
        found["original_max_position_embeddings"] = original
    if kind in ("yarn", "longrope"):
        _fill_attention_factor(kind, found, length)
    keys = ROPE_KEYS[kind]
    if missing := [key for key in keys if found.get(key) is None]:
        raise ConfigError(f"rope_scaling: {kind} needs {', '.join(missing)}")
    if strange := sorted(set(found) - set(keys)):
        raise ConfigError(f"rope_scaling: {kind} with {', '.join(strange)}, whose meaning is not known")
    return {"rope_type": kind, **{key: found[key] for key in keys}}


def _fill_attention_factor(kind: str, found: dict[str, Any], length: Any) -> None:
    original = found["original_max_position_embeddings"]
    try:
        factor = found.get("factor") or length / original
        if kind == "yarn":
            found |= {
                "factor": factor,
                "beta_fast": found.get("beta_fast") or 32,
                "beta_slow": found.get("beta_slow") or 1,
                "truncate": found.get("truncate", True),
            }
            scale, scale_all = found.pop("mscale", None), found.pop("mscale_all_dim", None)
            both = _yarn_factor(factor, scale) / _yarn_factor(factor, scale_all) if scale and scale_all else None
            found.setdefault("attention_factor", both or _yarn_factor(factor, 1))
        else:
            found.pop("factor", None)  # it only serves the attention factor
            found.setdefault("attention_factor", _longrope_factor(factor, original))
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"rope_scaling: {kind} with impossible numbers ({error})") from error


def _yarn_factor(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope_factor(factor: float, original: float) -> float:
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
