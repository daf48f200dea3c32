# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="headgate" in models whose own code adds the attention mask: they get eager's mask."""

import ast
import importlib
import re

import pytest
import torch
import transformers
from transformers import StaticCache

import headgate.torch.transformers
import keywords
import watch_reference
from headgate.torch import own_attention

headgate.torch.transformers.register(functions=False)
SCRIPT = watch_reference.small_models()
ENCODERS = """BigBird BlipText Canine ConvBert FlavaText IBert Longformer Luke MegatronBert MPNet Nystromformer RemBert
RoFormer SqueezeBert Tapas VisualBert""".split()
DECODERS = "Bloom CodeGen GPTNeoXJapanese Mpt Mvp TrOCR XGLM".split()
# Classes that add a mask in files that call the interface. The reason says why a boolean mask of make_mask is not added.
LISTED = "is in own_attention.CONFIGS"
OTHER = "gets a mask that no mask function made"
EAGER = "runs only with eager attention"
MIXED = {
    "BeitLayer": LISTED,
    "BeitModel": LISTED,
    "BigBirdPegasusSelfAttention": LISTED,
    "ClapAudioSelfAttention": OTHER,
    "ConditionalDetrMHAttentionMap": OTHER,
    "DecisionTransformerGPT2Attention": EAGER,
    "DetrMHAttentionMap": OTHER,
    "GPT2Attention": EAGER,
    "GitSelfAttention": "refuses the name",
    "InformerProbSparseAttention": LISTED,
    "LongT5TransientGlobalAttention": OTHER,
    "MaskFormerDetrMHAttentionMap": OTHER,
    "MoshiForConditionalGeneration": OTHER,
    "PPDocLayoutV2ReadingOrderSelfAttention": LISTED,
}


def made(kind, config, attention):
    return SCRIPT.made(kind, config, attention).eval()


def assert_same_at_tokens(kind, config, mask, make_cache=lambda _: {}):
    """Compares the first output with that of eager attention at all tokens."""
    ids = torch.randint(3, 97, mask.shape, generator=torch.Generator().manual_seed(1))
    found = []
    for attention in ("eager", "headgate"):
        model = made(kind, config, attention)
        with torch.no_grad():
            found.append(model(input_ids=ids, attention_mask=mask, **make_cache(model.config))[0][mask.bool()])
    torch.testing.assert_close(found[1], found[0])


def padded(side, tokens):
    mask = torch.ones(2, tokens, dtype=torch.long)
    mask[1, slice(-4, None) if side == "right" else slice(4)] = 0
    return mask


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ENCODERS)
def test_padded_encoder_with_own_attention_matches_eager_attention(name, side):
    kind = getattr(transformers, f"{name}Model")
    config = SCRIPT.config_of(kind)
    if name == "Luke":
        config.entity_vocab_size = 20
    assert_same_at_tokens(kind, config, padded(side, 32))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_padded_decoder_with_own_attention_matches_eager_attention(name, static, side):
    if static and name == "Bloom":
        pytest.skip("has biases of positions that do not fit a static cache, in eager attention too")
    kind = getattr(transformers, f"{name}ForCausalLM")

    def cache(config):
        return {"past_key_values": StaticCache(config=config, max_cache_len=16)} if static else {"use_cache": False}

    assert_same_at_tokens(kind, SCRIPT.config_of(kind), padded(side, 12), cache)


def test_padded_beit_with_position_biases_matches_eager_attention():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    config = transformers.BeitConfig(**sizes, intermediate_size=48, use_shared_relative_position_bias=True)
    pixels, mask = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32), padded("right", 17)
    found = [
        made(transformers.BeitModel, config, each)(pixels, attention_mask=mask)[0] for each in ("eager", "headgate")
    ]
    torch.testing.assert_close(found[1][mask.bool()], found[0][mask.bool()])


def test_padded_compiled_encoder_with_own_attention_matches_eager_attention():
    kind = transformers.RoFormerModel
    config, mask = SCRIPT.config_of(kind), padded("right", 12)
    ids = torch.randint(3, 97, mask.shape)
    program = torch.compile(made(kind, config, "headgate"), fullgraph=True, backend="aot_eager")
    expected = made(kind, config, "eager")(ids, attention_mask=mask)[0]
    torch.testing.assert_close(program(ids, attention_mask=mask)[0], expected)


def added_masks(tree):
    """Yields the classes of a file that add a mask of attention to something, whatever its type."""
    for each in tree.body:
        additions = (node for node in ast.walk(each) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add))
        sides = (ast.unparse(side) for node in additions for side in (node.left, node.right))
        if isinstance(each, ast.ClassDef) and any(re.match(r"\w*(attention|prob)_mask\b(?!\.sum)", x) for x in sides):
            if not re.search(r"mask\.(dtype == torch\.bool|is_floating_point\(\))", ast.unparse(each)):
                yield each.name


def files_with_masks():
    for path in sorted(keywords.MODELS.glob("*/modeling_*.py")):
        code = path.read_text()
        if re.search(r"create_(causal|bidirectional|sliding\w*|chunked\w*)_mask", code):
            yield path, code


def test_every_file_whose_attention_adds_its_mask_gets_masks_of_eager_attention():
    """Reads the code of all models of the installed transformers."""
    own, mixed = 0, {}
    for path, code in files_with_masks():
        if "ALL_ATTENTION_FUNCTIONS" in code:
            mixed |= dict.fromkeys(added_masks(ast.parse(code)), path.stem)
        elif re.search(r"^class \w*Attention\w*\(", code, re.MULTILINE):
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
            configs = {model.config_class for model in own_attention.models() if model.__module__ == module.__name__}
            assert configs - {None} and all(map(own_attention.has_own_attention, configs - {None})), path.stem
            own += 1
    assert own > 20
    assert not mixed.keys() - MIXED.keys()


@pytest.mark.parametrize(
    "family", ["Llama", "Qwen3", "GptOss", "Bert", "T5", "Bart", "Qwen3Next", "Whisper", "Gemma3Text"]
)
def test_models_that_call_the_interface_get_rules(family):
    assert not own_attention.has_own_attention(getattr(transformers, f"{family}Config"))
