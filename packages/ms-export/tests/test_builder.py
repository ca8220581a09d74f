from dataclasses import replace

import ms_export
import pytest
from ms_export import bundle as bundles
from ms_export.errors import BundleError, ModelError, ParityError


@pytest.fixture
def build(toy, small):
    def run(output, model=None, **options):
        return ms_export.build(output, model=model or toy.cached_model(small), config=small, **options)

    return run


def _content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_an_existing_bundle_is_replaced_only_when_asked_and_only_when_the_new_one_is_complete(
    build, toy, small, tmp_path
):
    output = build(tmp_path / "deep" / "bundle", probes=[[1]])
    first = _content(output)

    with pytest.raises(BundleError, match="exists already"):
        build(output)
    broken = replace(toy.cached_model(small), decode=lambda window: toy.Decode(toy.Toy(4, 16), window))
    with pytest.raises(ModelError):
        build(output, model=broken, overwrite=True)
    assert _content(output) == first

    build(output, probes=[[2]], overwrite=True)

    assert _content(output) != first
    assert [path.name for path in output.parent.iterdir()] == ["bundle"]
    ms_export.Runtime(output)


def test_overwrite_never_touches_what_is_no_bundle(build, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to(tmp_path / "thesis")

    for name in ("thesis", "file", "link"):
        with pytest.raises(BundleError, match="overwrite does not touch it"):
            build(tmp_path / name, overwrite=True)

    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


@pytest.mark.slow
def test_a_model_whose_decode_is_wrong_is_refused_and_leaves_nothing(toy, small, tmp_path):
    class Forgetful(toy.Decode):
        """Sees one row too few: a decode that disagrees with itself only in the graph's own window is not enough."""

        def __init__(self, inner, window):
            super().__init__(inner, window)
            self.limit = window < 16

        def construct(self, input_ids, positions, slots):
            if self.limit:
                positions = positions - 1
            x = self.toy.embed(input_ids, positions.reshape(-1, 1))
            now, seen = self.toy.rows(slots, positions.reshape(-1, 1, 1)), self.toy.rows(slots, self.window)
            keys = toy.ops.gather(self.toy.write(self.toy.key_cache, now, self.toy.split(x, self.toy.key)), seen, 0)
            values = toy.ops.gather(
                self.toy.write(self.toy.value_cache, now, self.toy.split(x, self.toy.value)), seen, 0
            )
            x = self.toy.attend(x, keys, values, self.window <= positions.reshape(-1, 1, 1, 1))
            return toy.ops.matmul(x.reshape(-1, toy.HIDDEN), self.toy.lm_head.T)

    windows = replace(small, decode_windows=(8,))
    model = toy.cached_model(windows)
    wrong = replace(model, decode=lambda window: Forgetful(model.prefill.toy, window))

    with pytest.raises(ParityError, match=r"decode-0001x00008\.mindir by .* allowed are"):
        ms_export.build(tmp_path / "wrong", model=wrong, config=windows)

    assert list(tmp_path.iterdir()) == []


def test_a_weight_that_no_cell_uses_is_refused(toy, small, tmp_path):
    model = toy.cached_model(small)
    weights = {**model.weights, "lm_head.bias": toy.Parameter(toy.ops.zeros(64))}

    with pytest.raises(ModelError, match=r"no cell reaches \['lm_head\.bias'\]"):
        ms_export.build(tmp_path / "extra", model=replace(model, weights=weights), config=small)


def test_a_cell_with_other_inputs_is_refused(toy, small, tmp_path):
    class Renamed(toy.nn.Cell):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def construct(self, ids, lengths, slots):
            return self.inner(ids, lengths, slots)

    model = toy.cached_model(small)

    with pytest.raises(ModelError, match=r"expected inputs \['input_ids', 'lengths', 'slots'\], found \['ids'"):
        ms_export.build(tmp_path / "b", model=replace(model, prefill=Renamed(model.prefill)), config=small)


def test_a_configuration_that_is_not_the_models_is_refused(toy, small, tmp_path):
    with pytest.raises(ModelError, match=r"export\.max_length: expected the model's 16, found 20"):
        ms_export.build(tmp_path / "b", model=toy.cached_model(small), config=replace(small, max_length=20))


def test_a_vocabulary_wider_than_the_logits_and_an_end_id_outside_it_are_refused(toy, small, tmp_path):
    model = toy.cached_model(small)

    with pytest.raises(ModelError, match=r"vocab_size: expected 1 to the width of the logits \(64\), found 65"):
        ms_export.build(tmp_path / "b", model=replace(model, vocab_size=65), config=small)
    wrong = replace(model, config={"vocab_size": 64, "eos_token_id": [0, 64]})
    with pytest.raises(ModelError, match="eos_token_id: 64 is outside"):
        ms_export.build(tmp_path / "b", model=wrong, config=small)


def test_the_tokenizer_travels_byte_for_byte_with_its_fingerprint(text_bundle, tokenizer_file):
    assert (text_bundle / "tokenizer.json").read_bytes() == tokenizer_file.read_bytes()
    assert bundles.read(text_bundle).tokenizer.fingerprint == "sha256:" + "ab" * 32


def test_another_tokenizer_than_the_models_is_refused_by_fingerprint(toy, small, tokenizer_file, tmp_path):
    model = toy.cached_model(small)
    trained = replace(model, config={**model.config, "tokenizer_fingerprint": "sha256:" + "cd" * 32})

    with pytest.raises(BundleError, match=r"fingerprint sha256:abab.* is not the one the model was trained with"):
        ms_export.build(
            tmp_path / "b", model=trained, config=small, tokenizer=tokenizer_file,
            tokenizer_fingerprint="sha256:" + "ab" * 32,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "named"), [({"tokenizer": "nowhere.json"}, "nowhere.json"), ({"tokenizer_kind": "bpe"}, "'bpe'")]
)
def test_a_tokenizer_that_is_missing_or_of_an_unknown_kind_is_refused(build, tmp_path, options, named):
    with pytest.raises(BundleError, match=named):
        build(tmp_path / "b", **options)

    assert list(tmp_path.iterdir()) == []


def test_defaults_come_from_the_models_config_and_the_export_options(toy, small, tmp_path):
    model = replace(
        toy.cached_model(small),
        config={"vocab_size": 60, "eos_token_id": [3, 4, 3], "bos_token_id": 5, "pad_token_id": None},
    )

    folder = ms_export.build(tmp_path / "b", model=model, config=replace(small, temperature=0.7, top_k=4))

    bundle = bundles.read(folder)
    assert bundle.vocab_size == 60
    assert bundle.generation.eos_token_ids == (3, 4)
    assert (bundle.generation.bos_token_id, bundle.generation.pad_token_id) == (5, None)
    assert (bundle.generation.temperature, bundle.generation.top_k) == (0.7, 4)
    assert bundle.model["eos_token_id"] == [3, 4, 3]
    runtime = ms_export.Runtime(folder)
    picked = runtime.generate([[7]] * 20, temperature=50.0, top_k=0, eos_token_ids=())
    assert max(i for generation in picked for i in generation.ids) < 60
