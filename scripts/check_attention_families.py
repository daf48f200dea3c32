#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_attention_families.py [NAME …]: attn_implementation="headgate" against "sdpa" and "eager", on a small random model
of each family of transformers that chooses its attention by name.

Compares the outputs and the gradients of all parameters, with padding on the left and on the right, and the tokens that
are generated greedily with padding on the left. The text is longer than all that limits which keys a query sees: windows,
chunks, the keys and the blocks that an index chooses. Prints a row for each family with its limits; "without effect" names
those that did not change the outputs of eager attention. "no interface" marks families that do not call it.
Then come the refused and skipped families, with what each said, and the keyword arguments that the attention was called
with. Needs a few minutes.
"""

import argparse
import collections
import copy
import signal
import sys
import traceback
import warnings

import numpy
import torch
import transformers
from transformers.models.auto import modeling_auto

import headgate.torch.transformers

TOLERANCE = 1e-4
TOKENS = 32
# Config entries that limit which keys a query sees. Each limit is far below TOKENS.
LIMITS = {
    "sliding_window": 5,
    "sliding_window_size": 5,
    "attention_window": 8,
    "attention_window_size": 5,
    "local_attention": 8,
    "attention_chunk_size": 6,
    "window_size": 5,
    "index_topk": 4,
    "index_topk_blocks": 2,
    "index_block_size": 4,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
    "keep_window_size": 6,
    "local_radius": 3,
    "global_block_size": 4,
}
SMALL = {
    "vocab_size": 97,
    "unpadded_vocab_size": 97,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "embed_dim": 32,
    "embedding_size": 32,
    "word_embed_proj_dim": 32,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "d_ff": 48,
    "n_inner": 48,
    "hidden_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "d_kv": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_kv_heads": 1,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "rel_extent": 8,
    "d_rel": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "decoder_start_token_id": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "rotary_dim": 4,
    "block_size": 8,
}
NO_DROPOUT = (
    "dropout",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "activation_dropout",
    "dropout_rate",
    "hidden_dropout",
    "embedding_dropout",
    "embed_pdrop",
    "layerdrop",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "classifier_dropout",
)
# Config entries that are lists with one word for each layer.
LAYERS = ("layer_types", "indexer_types")
# Config entries that turn windows on, for families in which they are off by default.
WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": LIMITS["sliding_window"],
    "max_window_layers": 1,
    "layer_types": ["sliding_attention", "full_attention"],
}
# Additional config entries of single families. They keep the model small, or give it every kind of layer.
OWN = {
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse", "full_attention"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "dots3_note_text": {
        "layer_types": ["indexed_attention", "sliding_attention"],
        "sliding_window": LIMITS["sliding_window"],
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
    },
    "deepseek_v3": {"head_dim": 8},
    "axk1": {"head_dim": 8},
    "longcat_flash": {"head_dim": 8},
    "youtu": {"head_dim": 8},
    "laguna": {"layer_types": WINDOWS["layer_types"]},
    "mellum": {"layer_types": WINDOWS["layer_types"]},
    "longt5": {"encoder_attention_type": "transient-global"},
}
TASKS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    # Multimodal models whose text part has no class of its own.
    "of texts and images": {"mistral_large4": "MistralLarge4ForConditionalGeneration"},
}
LARGEST = 3_000_000  # parameters
WITHOUT = "no interface"


class Skipped(Exception):
    pass


def text_keys(config_class, limits):
    """Returns the entries of a config for a model of a few thousand parameters. `limits` replaces LIMITS."""
    defaults = config_class()

    def is_key(name):
        if name in LIMITS and name in getattr(config_class, "attribute_map", {}):
            return False
        try:
            there = hasattr(defaults, name)
        except Exception:  # raised for entries that differ between layers
            there = True
        return there and not isinstance(getattr(config_class, name, None), property)

    keys = {name: value for name, value in (SMALL | limits).items() if is_key(name)}
    keys |= {name: 0.0 for name in NO_DROPOUT if is_key(name)}
    if hasattr(defaults, "attention_type"):
        keys["attention_type"] = "original_full"
    own = OWN.get(config_class.model_type, {})
    if getattr(defaults, "use_sliding_window", None) is False:
        own = {name: value for name, value in WINDOWS.items() if is_key(name)} | own
    for name in (*LIMITS, "q_lora_rank", "rotary_dim", "n_inner"):
        if name in keys and getattr(defaults, name, None) is None:
            keys.pop(name)
    if vars(defaults).get("num_key_value_heads") == vars(defaults).get("num_attention_heads", 0):
        keys["num_key_value_heads"] = 4
    keys |= own | {name: value for name, value in limits.items() if name in own}
    kinds = {name: list(dict.fromkeys(keys.get(name) or getattr(defaults, name, None) or ())) for name in LAYERS}
    layers = max(2, *map(len, kinds.values()))
    for name, words in kinds.items():
        if words and is_key(name):
            keys[name] = (words * layers)[:layers]
    if "num_hidden_layers" in keys:
        keys["num_hidden_layers"] = layers
    return keys


def config_of(kind, limits=LIMITS):
    """Returns a small config for this class of model. `limits` replaces LIMITS."""
    config_class = kind.config_class
    if "vision_config" not in config_class.sub_configs:
        return config_class(**text_keys(config_class, limits))
    text = text_keys(config_class.sub_configs["text_config"], limits)
    image = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "head_dim": 16,
    }
    return config_class(
        text_config=text, vision_config={"model_type": config_class().vision_config.model_type, **image}
    )


def limits_of(config):
    """Returns the entries of LIMITS that a config has, with their values."""
    text = config.get_text_config()
    other_names = getattr(text, "attribute_map", {})
    return {
        name: value for name, value in LIMITS.items() if name not in other_names and getattr(text, name, None) == value
    }


def made(kind, config, attention):
    torch.manual_seed(0)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2) if parameter.dim() > 1 else parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def inputs_of(task, rows=2):
    """Returns the arguments of the model, and its mask (rows,TOKENS). Row 1 has padding on the left, row 2 on the right."""
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (rows, TOKENS))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    mask[2:, -4:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if task == "seq2seq":
        given["decoder_input_ids"] = torch.randint(3, 97, (rows, TOKENS - 4))
    return given, mask


def outputs_and_gradients(task, model):
    given, mask = inputs_of(task, rows=3)
    out = model(**given)
    logits = out.logits if task == "seq2seq" else out.logits[mask.bool()]
    logits.float().square().mean().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(ours, expected):
    return ((ours - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()


def generated(task, model):
    given, mask = inputs_of(task)
    if given.pop("decoder_input_ids", None) is not None:
        given["decoder_start_token_id"] = 2
    with torch.no_grad():
        return model.eval().generate(**given, max_new_tokens=6, min_new_tokens=6, do_sample=False)


def effect_of(task, kind, limits, expected):
    """Returns the limits as text. Marks those that do not change the outputs of eager attention."""
    words = []
    for name, value in limits.items():
        try:
            wide = made(kind, config_of(kind, {**LIMITS, name: 1024}), "eager")
            felt = largest_difference(outputs_and_gradients(task, wide)[0], expected) > TOLERANCE
        except Exception:  # raised if the larger limit changes the model's sizes, or does not fit another limit
            felt = True
        words.append(f"{name} {value}" + ("" if felt else " without effect"))
    return ", ".join(words)


class Recorded:
    """Headgate's function for the attention interface. Counts its calls, and collects the names of their keyword
    arguments."""

    def __init__(self):
        self.calls, self.names = 0, collections.Counter()

    def __call__(self, *given, **named):
        self.calls += 1
        self.names.update(name for name, value in named.items() if value is not None)
        return headgate.torch.transformers.attention_forward(*given, **named)


def check(task, kind, recorded):
    """Returns the largest differences of a family's logits and gradients, whether the generated tokens agree, and the
    limits as text, after "no interface" if it was not called. Raises Skipped if there is nothing to compare.
    Errors of the model are raised unchanged."""
    with torch.device("meta"):
        count = sum(p.numel() for p in kind(config_of(kind)).parameters())
    if count > LARGEST:
        raise Skipped(f"{count} parameters with small sizes")
    config = config_of(kind)
    reference = made(kind, config, "eager")
    other = "sdpa" if reference._supports_sdpa else "eager"
    expected, theirs = outputs_and_gradients(task, reference)
    if largest_difference(outputs_and_gradients(task, made(kind, config, "eager"))[0], expected) > TOLERANCE:
        raise Skipped("eager attention differs from itself")
    if not all(gradient.isfinite().all() for gradient in theirs.values()):
        raise Skipped("the gradients of eager attention are not finite")
    before = recorded.calls
    model = made(kind, config, "headgate")
    logits, ours = outputs_and_gradients(task, model)
    called = recorded.calls > before
    assert torch.isfinite(expected).all(), "eager attention is not finite"
    of_logits = largest_difference(logits, expected)
    # numpy.max returns NaN if a difference is NaN, which Python's max() may drop.
    of_gradients = numpy.max([largest_difference(ours[name], theirs[name]) for name in theirs])
    same = ""
    if task != "masked":
        same = "yes" if torch.equal(generated(task, model), generated(task, made(kind, config, other))) else "NO"
    limits = effect_of(task, kind, limits_of(config), expected)
    return of_logits, of_gradients, same, limits if called else f"{WITHOUT} {limits}"


def families(names):
    for task, mapping in TASKS.items():
        for family, kind in mapping.items():
            kind = kind if isinstance(kind, str) else kind[0]
            if (not names or family in names) and hasattr(transformers, kind):
                yield task, family, kind


def out_of_time(*_):
    raise Skipped("not finished in 60 seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="families, by transformers' model types; default: all")
    parser.add_argument("--traceback", action="store_true", help="show where a family fails")
    options = parser.parse_args()
    if unknown := set(options.names) - {family for mapping in TASKS.values() for family in mapping}:
        parser.error(f"'{min(unknown)}' is no model type of transformers {transformers.__version__}")
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    headgate.torch.transformers.register()
    recorded = Recorded()
    transformers.AttentionInterface.register("headgate", recorded)
    signal.signal(signal.SIGALRM, out_of_time)
    passed, without, wrong, others = 0, 0, 0, []
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {TOKENS} tokens")
    for task, family, name in families(options.names):
        signal.alarm(60)
        try:
            of_logits, of_gradients, same, limits = check(task, getattr(transformers, name), recorded)
        except Exception as error:
            others.append(
                f"{family}: {name}: {type(error).__name__}: {str(error).splitlines()[0][:110] if str(error) else ''}"
            )
            if options.traceback:
                traceback.print_exc()
            continue
        finally:
            signal.alarm(0)
        good = of_logits <= TOLERANCE and of_gradients <= 10 * TOLERANCE and same != "NO"
        called = not limits.startswith(WITHOUT)
        passed, without, wrong = passed + (good and called), without + (good and not called), wrong + (not good)
        word = "ok   " if good else "WRONG"
        print(f"{word} {name:45s} {of_logits:.1e} {of_gradients:.1e} {same:3s} {limits}".rstrip(), flush=True)
    print("\n".join(others))
    print("keyword arguments: " + ", ".join(sorted(recorded.names)))
    print(f"{passed} passed, {without} passed without the interface, {wrong} wrong, {len(others)} skipped or refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
