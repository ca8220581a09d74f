"""A user's own table as a JSON file: the weights' rules of a model that is no family here, and what its config means.

    {"format": "ms-weightconv.table", "version": 1, "name": "mymodel", "architecture": "MyModelForCausalLM",
     "prefix": "model.", "like": "llama", "constants": {"attention_bias": true}, "lifted": ["auto_map"],
     "rules": [{"theirs": "model.layers.{layer}.attn.qkv.weight",
                "ours": ["blocks.{layer}.attention.query.weight", "...key.weight", "...value.weight"],
                "steps": ["transpose", "split query/key/value"], "when": "not experts"},
               {"theirs": "lm_head.weight", "ours": "lm_head.weight", "tied_to": "embedding.weight"},
               {"theirs": "model.layers.{layer}.attn.mask", "dropped_because": "a mask, not a weight"}]}

Config keys are read as those of the family `like`; `constants` are keys of contract `model` that this model fixes.
"""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ms_weightconv.contract import DEFAULTS, REQUIRED
from ms_weightconv.errors import ConfigError
from ms_weightconv.families import FAMILIES
from ms_weightconv.family import Family
from ms_weightconv.rules import Drop, Rule, Tie
from ms_weightconv.shards import read_json
from ms_weightconv.steps import Halves, RotaryPairs, Split, Stack, Step, Transpose, Ungroup

FORMAT, VERSION = "ms-weightconv.table", 1
STEPS: dict[str, Step] = {
    "transpose": Transpose(),
    "split query/key/value": Split("query", "key", "value"),
    "split gate/up": Split("gate", "up"),
    "ungroup query/key/value": Ungroup(),
    "halves": Halves(),
    "rows in turn": Halves(is_interleaved=True),
    "stack experts": Stack(),
    "rotary pairs": RotaryPairs(),
}
"""The steps that a file may name."""
_KEYS = {
    "format", "version", "name", "architecture", "prefix", "like", "constants", "lifted", "rules", "unresolved",
    "confirmed",
}  # fmt: skip


def read_table(path: Path) -> Family:
    """Reads a table; raises ConfigError with what is wrong in it, or if it is a proposal that nobody confirmed."""
    values = read_json(path)
    found = (values.get("format"), values.get("version"))
    if found != (FORMAT, VERSION):
        raise ConfigError(f"{path}: format {found[0]!r} version {found[1]!r}, expected {FORMAT!r} version {VERSION}")
    _known(str(path), values, _KEYS)
    if unresolved := values.get("unresolved"):
        raise ConfigError(f"{path}: unresolved: {', '.join(map(str, unresolved))[:2000]}: give each a rule, or drop it")
    if values.get("confirmed", True) is not True:
        raise ConfigError(f"{path}: a proposal; look at every rule, then set confirmed to true")
    like, constants, rules = values.get("like"), values.get("constants", {}), values.get("rules")
    if not isinstance(like, str) or like not in FAMILIES:
        raise ConfigError(f"{path}: like: found {like!r:.100}, expected one of {', '.join(FAMILIES)}")
    if not isinstance(constants, dict) or not isinstance(rules, list) or not rules:
        raise ConfigError(f"{path}: constants must be an object, rules a list that is not empty")
    _known(f"{path}: constants", constants, {*REQUIRED, *DEFAULTS})
    texts = {key: values.get(key, default) for key, default in (("name", ""), ("architecture", like), ("prefix", ""))}
    if not all(isinstance(text, str) for text in texts.values()) or not texts["name"]:
        raise ConfigError(f"{path}: name, architecture and prefix must be texts, and there must be a name")
    return replace(
        FAMILIES[like],
        name=texts["name"],
        architecture=texts["architecture"],
        prefix=texts["prefix"],
        rules=tuple(_rule(f"{path}: rules[{number}]", rule) for number, rule in enumerate(rules)),
        constants={**FAMILIES[like].constants, **constants},
        spellings=(),
        lifted=tuple(map(str, values.get("lifted", ()))),
    )


def _rule(what: str, values: Any) -> Rule | Tie | Drop:
    if not isinstance(values, dict):
        raise ConfigError(f"{what}: expected an object, found {values!r:.100}")
    if "dropped_because" in values:
        _known(what, values, {"theirs", "dropped_because"})
        return Drop(_text(what, values, "theirs"), _text(what, values, "dropped_because"))
    if "tied_to" in values:
        _known(what, values, {"theirs", "ours", "tied_to"})
        return Tie(*(_text(what, values, key) for key in ("theirs", "ours", "tied_to")))
    _known(what, values, {"theirs", "ours", "steps", "when"})
    names = [_names(what, values, key) for key in ("theirs", "ours")]
    steps, when = values.get("steps", []), values.get("when")
    if not isinstance(steps, list) or not isinstance(when, str | None):
        raise ConfigError(f"{what}: steps must be a list, when a text")
    if unknown := [step for step in steps if not isinstance(step, str) or step not in STEPS]:
        raise ConfigError(f"{what}: step {unknown[0]!r:.100}, expected one of {', '.join(STEPS)}")
    return Rule(names[0], names[1], tuple(STEPS[step] for step in steps), when=when)


def _text(what: str, values: dict[str, Any], key: str) -> str:
    if not isinstance(values.get(key), str):
        raise ConfigError(f"{what}: {key}: expected a text, found {values.get(key)!r:.100}")
    return str(values[key])


def _names(what: str, values: dict[str, Any], key: str) -> tuple[str, ...]:
    names = [values.get(key)] if isinstance(values.get(key), str) else values.get(key)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what}: {key}: expected a name or a list of names, found {names!r:.100}")
    return tuple(names)


def _known(what: str, values: dict[str, Any], known: set[str]) -> None:
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            raise ConfigError(f"{what}: {key}: unknown key; {f'did you mean {near[0]}?' if near else sorted(known)}")
