#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_attention_families.py [NAME …]: attn_implementation="headgate" against "sdpa" and "eager", on a small random model
of each family of transformers that chooses its attention by name.

Compares the outputs and the gradients of all parameters, with padding where the model takes a mask, and the tokens that
are generated greedily. Prints a row for each family, and what each refused or skipped one said. Needs a few minutes.
"""

import argparse
import copy
import signal
import sys
import traceback
import warnings

import torch
import transformers
from transformers.models.auto import modeling_auto

import headgate.torch.transformers

TOLERANCE = 1e-4
SMALL = {
    "vocab_size": 97,
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
    "sliding_window": 5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "decoder_start_token_id": 2,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "rotary_dim": 4,
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
TASKS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
LARGEST = 3_000_000  # parameters


class Skipped(Exception):
    pass


def config_of(kind):
    """A config of a few thousand parameters for this class of model."""
    config_class = kind.config_class
    defaults = config_class()

    def is_key(name):
        return hasattr(defaults, name) and not isinstance(getattr(config_class, name, None), property)

    keys = {name: value for name, value in SMALL.items() if is_key(name)}
    keys |= {name: 0.0 for name in NO_DROPOUT if is_key(name)}
    if hasattr(defaults, "attention_type"):
        keys["attention_type"] = "original_full"
    if getattr(defaults, "sliding_window", None) is None:
        keys.pop("sliding_window", None)
    for name in ("q_lora_rank", "rotary_dim", "n_inner"):
        if getattr(defaults, name, None) is None:
            keys.pop(name, None)
    if getattr(defaults, "num_key_value_heads", None) == getattr(defaults, "num_attention_heads", 0):
        keys["num_key_value_heads"] = 4
    types = getattr(defaults, "layer_types", None)
    if types and is_key("layer_types"):
        kinds = list(dict.fromkeys(types))
        keys["layer_types"] = (kinds * 2)[:2]
    return config_class(**keys)


def made(kind, config, attention):
    torch.manual_seed(0)
    model = kind._from_config(copy.deepcopy(config), attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2) if parameter.dim() > 1 else parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def inputs_of(task, model):
    torch.manual_seed(1)
    ids = torch.randint(3, 97, (2, 11))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if task == "seq2seq":
        given["decoder_input_ids"] = torch.randint(3, 97, (2, 7))
    return given, mask


def outputs_and_gradients(task, model):
    given, mask = inputs_of(task, model)
    out = model(**given)
    logits = out.logits if task == "seq2seq" else out.logits[mask.bool()]
    logits.float().square().mean().backward()
    return logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(ours, expected):
    return ((ours - expected).abs().max() / expected.abs().max().clamp_min(1e-3)).item()


def generated(task, model):
    given, mask = inputs_of(task, model)
    if given.pop("decoder_input_ids", None) is not None:
        given["decoder_start_token_id"] = 2
    with torch.no_grad():
        return model.eval().generate(**given, max_new_tokens=6, min_new_tokens=6, do_sample=False)


def check(task, kind):
    """The family's figures. Raises Skipped where there is nothing to compare, and whatever its model raises."""
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
    calls = []
    inner = headgate.torch.transformers.gated_attention
    headgate.torch.transformers.gated_attention = lambda *a, **k: calls.append(1) or inner(*a, **k)
    try:
        model = made(kind, config, "headgate")
        logits, ours = outputs_and_gradients(task, model)
    finally:
        headgate.torch.transformers.gated_attention = inner
    if not calls:
        raise Skipped("its attention does not go through the interface")
    assert torch.isfinite(expected).all(), "eager attention is not finite"
    of_logits = largest_difference(logits, expected)
    of_gradients = max(largest_difference(ours[name], theirs[name]) for name in theirs)
    same = ""
    if task != "masked":
        same = "yes" if torch.equal(generated(task, model), generated(task, made(kind, config, other))) else "NO"
    return of_logits, of_gradients, same


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
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    headgate.torch.transformers.register()
    signal.signal(signal.SIGALRM, out_of_time)
    passed, wrong, others = 0, 0, []
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}")
    for task, family, name in families(options.names):
        signal.alarm(60)
        try:
            of_logits, of_gradients, same = check(task, getattr(transformers, name))
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
        passed, wrong = passed + good, wrong + (not good)
        print(f"{'ok   ' if good else 'WRONG'} {name:45s} {of_logits:.1e} {of_gradients:.1e} {same}", flush=True)
    print("\n".join(others))
    print(f"{passed} passed, {wrong} wrong, {len(others)} skipped or refused")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
