# SPDX-License-Identifier: Apache-2.0
"""Changes every key that transformers' config classes of our families have, one at a time, in the config.json of a small
random model. Either `headgate` refuses the file in one line that names the key, or its loss is that of
transformers. Values that transformers itself cannot compute with need no more than an error from Headgate."""

import copy
import json
import math
import re
from unittest import mock

import pytest
import torch
import transformers
from transformers.configuration_utils import PreTrainedConfig
from transformers.initialization import no_init_weights
from transformers.models.step3p7.configuration_step3p7 import Step3p7Config, Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7ForConditionalGeneration

import headgate

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
TOLERANCE = 1e-4
TEXT = "Sphinx of black quartz, judge my vow! Yes?"
IDS = torch.tensor([list(TEXT.encode())])
LAYERS = 4
SIZES = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
SHARED = {"shared_expert_intermediate_size": 16}
WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "beta_fast": 6.0,
    "beta_slow": 1.5,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 24,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
BY_TYPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}


class Family:
    """A config class of transformers, and configs of small models of it: the keys of each `also` on top of `keys`."""

    def __init__(self, config, kind, keys, also=()):
        self.config, self.kind = config, kind
        self.bases = [{**SIZES, **keys, **more} for more in ({}, *also)]

    def base(self, keys):
        """Returns a config.json as transformers writes it."""
        made = self.config(**copy.deepcopy(keys)).to_dict()
        return {key: value for key, value in made.items() if key not in PROVENANCE}

    def read(self, config):
        """Returns what transformers makes of a config.json."""
        return self.config.from_dict(copy.deepcopy(config))

    def written(self, config):
        return config


class StepFamily(Family):
    """Step-3.7, whose text model transformers has only beside one that reads images."""

    VISION = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}

    def written(self, config):
        return {"model_type": "step3p7", "text_config": config, "vision_config": {**self.VISION, "image_size": 28}}

    def read(self, config):
        return Step3p7Config(**copy.deepcopy(self.written(config)))


def scaled(*kinds):
    """Configs with RoPE of these parameters, in the key of newer files and in those of older ones."""
    for parameters in kinds:
        yield {"rope_parameters": parameters}


ROPES = tuple(scaled(LINEAR_ROPE, LLAMA3, YARN))
t = transformers
FAMILIES = {
    "llama": Family(t.LlamaConfig, t.LlamaForCausalLM, {}, (*ROPES, {"attention_bias": True})),
    "mistral": Family(t.MistralConfig, t.MistralForCausalLM, {"sliding_window": 6}, ROPES[2:]),
    "qwen2": Family(t.Qwen2Config, t.Qwen2ForCausalLM, {}, ({**WINDOW, "use_sliding_window": True},)),
    "qwen3": Family(
        t.Qwen3Config,
        t.Qwen3ForCausalLM,
        {},
        ({"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 2}, {"attention_bias": True}),
    ),
    "qwen3_5": Family(t.Qwen3_5TextConfig, t.Qwen3_5ForCausalLM, {**LINEAR, "head_dim": 16}, ROPES[:2]),
    "qwen3_5_moe": Family(
        t.Qwen3_5MoeTextConfig, t.Qwen3_5MoeForCausalLM, {**LINEAR, **EXPERTS, **SHARED, "head_dim": 16}
    ),
    "qwen3_next": Family(
        t.Qwen3NextConfig, t.Qwen3NextForCausalLM, {**LINEAR, **EXPERTS, **SHARED, "head_dim": 16}, ROPES[2:]
    ),
    "olmo_hybrid": Family(
        t.OlmoHybridConfig, t.OlmoHybridForCausalLM, LINEAR, (*ROPES[2:], {"rope_parameters": {"rope_theta": None}})
    ),
    "afmoe": Family(
        t.AfmoeConfig,
        t.AfmoeForCausalLM,
        {**WINDOW, **EXPERTS, "num_shared_experts": 1, "num_dense_layers": 1, "global_attn_every_n_layers": 2},
        ROPES,
    ),
    "gemma3": Family(
        t.Gemma3TextConfig,
        t.Gemma3ForCausalLM,
        {**WINDOW, "query_pre_attn_scalar": 20},
        ({"rope_parameters": BY_TYPE},),
    ),
    "gpt_oss": Family(
        t.GptOssConfig,
        t.GptOssForCausalLM,
        {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 1.5},
        ROPES,
    ),
    "step3p5": StepFamily(
        Step3p7TextConfig,
        Step3p7ForConditionalGeneration,
        {
            **WINDOW,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "share_expert_dim": 16,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "num_sliding_attention_heads": 6,
            "swiglu_limits": [None, None, 0.5, None],
            "swiglu_limits_shared": [None, None, None, 0.5],
        },
        ({"rope_parameters": BY_TYPE},),
    ),
}

ABSENT = object()  # the key is removed


def generation_defaults(config):
    """Replaces GenerationConfig.from_model_config, which reads every attribute. Fails where that finds no text model."""
    assert config.get_text_config(decoder=True).to_dict
    return t.GenerationConfig()


COPIED = {"__dict__", "__getstate__", "__reduce_ex__"}  # a copy of an object reads one of these, for all its attributes
PROVENANCE = {"transformers_version", "_name_or_path"}  # not in the files that are changed

# Keys beyond those that a class writes: what older files have, and what transformers reads of them.
OLDER = {
    "rope_theta": [ABSENT, None, 200.0],
    "rope_scaling": [
        None,
        {},
        *({key: value for key, value in rope.items() if key != "rope_theta"} for rope in (LINEAR_ROPE, LLAMA3, YARN)),
        LINEAR_ROPE,
        {"type": "linear", "factor": 3.0},
        {"rope_type": "default", "type": "linear", "factor": 3.0},
        {"rope_type": "linear", "type": "default", "factor": 3.0},
        {"rope_type": None, "factor": 3.0},
        {"factor": 3.0},
        {"rope_type": "default"},
        {"rope_type": "default", "factor": 2.0},
        {"rope_type": "linear"},
        {"rope_type": "yarn"},
        {"rope_type": "yarn", "factor": 2.0},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16},
        {"rope_type": "llama3", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "longrope", "factor": 2.0},
        {"rope_type": "proportional", "factor": 2.0},
        {"rope_type": "mrope", "mrope_section": [1, 1, 2]},
    ],
    "partial_rotary_factor": [None, 0.0, 0.25, 0.5, 1.0],
    "original_max_position_embeddings": [16],
}
# Values by name, in place of those by type.
VALUES = {
    "hidden_act": ["swish", "gelu", "gelu_pytorch_tanh", "relu", "none", None],
    "hidden_activation": ["swish", "silu", "gelu", "relu", None],
    "layer_types": [
        None,
        [],
        ["full_attention"] * LAYERS,
        ["sliding_attention"] * LAYERS,
        ["linear_attention"] * LAYERS,
        ["full_attention"] * (LAYERS - 1),
        ["full_attention", "full_attention", "sliding_attention", "sliding_attention"],
        ["full_attention", "full_attention", "linear_attention", "full_attention"],
        ["chunked_attention", "full_attention"] * 2,
        "full_attention",
    ],
    "mlp_layer_types": [None, ["dense"] * 4, ["sparse"] * 4, ["sparse", "dense", "sparse", "sparse"], ["moe"] * 4],
    "mlp_only_layers": [None, [0], [1, 3]],
    "swiglu_limits": [None, [0.5] * 4, [0.0] * 4, [None, 0.25, None, None], [0.5]],
    "swiglu_limits_shared": [None, [0.5] * 4, [0.0] * 4, [None, 0.25, None, None], [0.5]],
    "num_hidden_layers": [2, 3, 5, 0, None],
    "num_attention_heads": [2, 6, 3, 0, None],
    "num_key_value_heads": [1, 4, 3, 0, None],
    "head_dim": [8, 10, 7, 0, None],
    "hidden_size": [16, 30, 0, None],
    "intermediate_size": [8, 48, 0, None],
    "vocab_size": [0, None],
    "max_position_embeddings": [256, 48, 0, None],
    "initializer_range": [0.1, 0.0, None],
    "rms_norm_eps": [0.1, 0.0, -1.0, None, 1],
    "sliding_window": [0, 1, 3, 100, None],
    "tie_word_embeddings": [True, None],
    "bos_token_id": [None, 3],
    "eos_token_id": [None, 3, [3, 4]],
    "pad_token_id": [None, 3],
    "rope_type": ["linear", "yarn", "llama3", "dynamic", "default", "proportional", "longrope", None, 1],
    "rope_theta": [20.0, 1.0, 0.0, 20000, None],
    "partial_rotary_factor": [1.0, 0.5, 0.25, 0.2, 0.0, 1, 2.0, None],
    "factor": [1.0, 0.5, 8, 0.0, None, "4"],
    "attention_factor": [0, 0.5, 1.0, None],
    "truncate": [True, False, None],
    "mscale": [1.0, 0.7, 0, None],
    "model_type": [],
    "architectures": [None, ["Other"]],
    "dtype": ["bfloat16", None],
    "transformers_version": ["4.57.1"],
    "num_labels": [3],
    "id2label": [{"0": "a", "1": "b"}],
    "label2id": [{"a": 0, "b": 1}],
    "per_layer_config": [None, {}, {"0": {"num_attention_heads": 4}}, {"0": {"head_dim": 4}}],
}
# Keys that a class may lack in its own files and that transformers reads.
ADDED = {
    "qwen3_5": {"full_attention_interval": [1, 2, 0]},
    "qwen3_5_moe": {"full_attention_interval": [2]},
    "qwen3_next": {"full_attention_interval": [2]},
    "gemma3": {
        "sliding_window_pattern": [1, 2, 3, 0],
        "_sliding_window_pattern": [2],
        "rope_local_base_freq": [30.0],
        "hidden_act": ["silu", "gelu_pytorch_tanh"],
    },
    "gpt_oss": {"num_experts": [4, 3], "experts_per_token": [1], "initial_context_length": [16]},
    "afmoe": {
        "score_func": ["softmax", "sigmoid"],
        "route_norm": [True, False],
        "n_group": [1, 2],
        "topk_group": [1, 2],
        "norm_topk_prob": [False],
    },
    "step3p5": {
        "num_attention_groups": [1],
        "moe_num_experts": [3],
        "moe_top_k": [1],
        "share_expert_dims": [8],
        "num_local_experts": [3],
        "moe_layers_enum": ["1,2", "2,3", [1, 2, 3]],
        "attention_other_setting": [{"num_attention_heads": 2}],
        "partial_rotary_factors": [[0.5] * 4, [0.5, 1.0] * 2],
        "num_nextn_predict_layers": [1],
        "gating": [False],
        "use_bidirectional_attention": [True],
    },
    "qwen3": {"mlp_bias": [True]},
    "mistral": {"layer_types": [["full_attention"] * 4], "attention_bias": [True], "use_sliding_window": [True]},
    "qwen2": {"attention_bias": [True]},
    "llama": {"layer_types": [["full_attention"] * 4], "sliding_window": [4], "use_sliding_window": [True]},
}
# Of every family: keys of other programs or of this library, which transformers does not read or which change masks.
ANYWHERE = {
    "frobnicate": [1],
    "is_causal": [True, False],
    "is_decoder": [True],
    "num_labels": [3],
    "temperature": [0.5],
    "attn_implementation": ["eager"],
    "attention_chunk_size": [4],
    "rope_scaling_type": ["linear"],
    "rope_scaling_factor": [2.0],
    "rope_truncate": [False],
    "sliding_rope_theta": [3.0],
    "attention_window": [3],
    "embedding_scale": [2.0],
    "attention_scale": [0.5],
    "qk_norm": ["none"],
    "route_scale": [2.0],
    "norm_topk_prob": [False],
    "num_dense_layers": [2],
    "num_experts": [3],
    "swiglu_limits": [[0.1] * 4],
    "quantization_config": [{"quant_method": "fp8"}],
    "partial_rotary_factors": [[0.5] * 4],
}
# Sizes without which a class makes a model far too large; those of its tensors show which size the tool took.
LARGE = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "moe_intermediate_size", "shared_expert_intermediate_size", "num_experts", "num_local_experts",
    "n_routed_experts", "share_expert_dim", "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim",
    "linear_value_head_dim",
}  # fmt: skip


def values_of(name, value):
    """Values of a key that differ from `value`."""
    if name in VALUES:
        found = VALUES[name]
    elif isinstance(value, bool):
        found = [not value, None]
    elif isinstance(value, int):
        found = [value + 1, 2 * value, 1, 0, None]
    elif isinstance(value, float):
        found = [2 * value + 0.5, 1.0, 0.0, None]
    elif value is None:
        found = [1, 0.5, True]
    else:
        found = [None]
    return [each for each in found if type(each) is not type(value) or each != value]


def with_value(config, path, value):
    """Returns a copy in which the key at `path` has the value, or is missing."""
    out = copy.deepcopy(config)
    inner = out
    for key in path[:-1]:
        inner = inner[key]
    if value is ABSENT:
        inner.pop(path[-1], None)
    else:
        inner[path[-1]] = copy.deepcopy(value)
    return out


def changes_in(config, name="", of=()):
    """Yields (path, value): every key of the object with other values, and without it."""
    for key, value in config.items():
        path = (*of, key)
        if path == ("model_type",):
            continue
        yield path, ABSENT
        for other in values_of(key, value):
            yield path, other
        if isinstance(value, dict) and key.startswith("rope_") or key in BY_TYPE:
            yield from changes_in(value, name, path)
            for added in ("partial_rotary_factor", "type", "mscale", "attention_factor", "truncate", "factor"):
                if added not in value and not any(inner in BY_TYPE for inner in value):
                    for other in values_of("rope_type" if added == "type" else added, None):
                        yield (*path, added), other


def settings(name):
    """Yields (base config, path, value)."""
    family = FAMILIES[name]
    for number, keys in enumerate(family.bases):
        base = family.base(keys)
        yield base, (), ABSENT
        paths = changes_in(base, name) if number == 0 else changes_in(
            {key: value for key, value in base.items() if key in keys and keys[key] != family.bases[0].get(key)}, name
        )  # fmt: skip
        for path, value in paths:
            yield base, path, value
        if number > 0:
            continue
        for added in (ANYWHERE, ADDED.get(name, {})):
            for key, others in added.items():
                for other in others:
                    yield base, (key,), other
        older = {key: value for key, value in base.items() if key != "rope_parameters"}
        for key, others in OLDER.items():
            for other in others:
                yield older, (key,), other
        yield {**base, "rope_parameters": {}}, ("rope_scaling",), LINEAR_ROPE
        yield {**base, "rope_parameters": LINEAR_ROPE}, ("rope_scaling",), LLAMA3
        yield {**older, "rope_scaling": LINEAR_ROPE}, ("partial_rotary_factor",), 0.5
        flat = {"rope_theta": 30.0, "rope_type": "default"}
        for rope in (None, {}, flat, BY_TYPE, {"full_attention": flat}, {"sliding_attention": flat}):
            yield base, ("rope_parameters",), rope
            yield {**base, "rope_theta": 70.0}, ("rope_parameters",), rope
        yield {**base, "rope_theta": None}, ("rope_parameters",), None
        if "sliding_window" in base and "layer_types" in base:
            full = {key: value for key, value in base.items() if key != "per_layer_config"}
            full["layer_types"] = ["full_attention"] * LAYERS
            if "use_sliding_window" in full:
                full["use_sliding_window"] = True
            yield full, ("sliding_window",), 3
        yield base, ("text_config",), {"model_type": "llama"}


class Weights:
    """Random parameters of models, drawn once for the same names and shapes, and the files that hold them."""

    def __init__(self, folder):
        self.folder, self.drawn = folder, {}

    @staticmethod
    def draw(name, parameter):
        """Returns numbers that reveal errors."""
        drawn, small = torch.randn_like(parameter), "conv" in name or "bias" in name
        if parameter.dim() > 1 and not small:
            return drawn * (1.2 / math.sqrt(parameter.shape[-1]))
        return 0.5 * drawn + (0.0 if small or "A_log" in name else 1.0)

    @staticmethod
    def shapes(model):
        return tuple((name, *parameter.shape) for name, parameter in model.named_parameters())

    def give(self, model):
        """Sets the model's parameters."""
        named, shapes = dict(model.named_parameters()), self.shapes(model)
        if shapes not in self.drawn:
            torch.manual_seed(1)
            self.drawn[shapes] = [self.draw(*row) for row in named.items()]
        for parameter, drawn in zip(named.values(), self.drawn[shapes]):
            parameter.copy_(drawn)

    def file(self, model):
        """Returns the file that holds the model's parameters; None if transformers cannot write it."""
        saved = self.folder / f"{hash(self.shapes(model)):x}"
        file = saved / "model.safetensors"
        try:
            if not file.exists():
                model.save_pretrained(saved)
        except Exception:
            return None
        return file


@torch.no_grad()
def computed(kind, config, weights):
    """Returns the loss by transformers and the model that got the weights; None for what it cannot compute."""
    given = None
    try:
        with no_init_weights():
            model = kind(config).float().eval()
        model.tie_weights()
        weights.give(model)
        given = model
        logits = model(IDS[:, :-1], use_cache=False).logits[0].double()
    except Exception:
        return None, given
    loss = torch.nn.functional.cross_entropy(logits, IDS[0, 1:]).item()
    return (loss if math.isfinite(loss) else None), given


class References:
    """Losses by transformers. A model runs once for all configs whose attributes that it reads have the same values."""

    def __init__(self, family, weights):
        self.family, self.weights = family, weights
        self.runs = []  # (the attributes that the run read, with their values; its result)

    @staticmethod
    def shown(value):
        """Returns text that differs where values or their types do."""
        if isinstance(value, PreTrainedConfig):
            return type(value).__name__  # its attributes are read one by one
        return type(value).__name__ if callable(value) else repr(value)

    @classmethod
    def attribute(cls, config, name):
        try:
            return cls.shown(getattr(config, name))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    @staticmethod
    def parts(config):
        """Returns the config and those inside it, by their class."""
        inner = [x for x in vars(config).values() if isinstance(x, PreTrainedConfig)]
        return {type(x): x for x in (config, *inner)}

    def result(self, config):
        """Returns the loss of a config.json and the file of the weights; None for what transformers cannot make."""
        try:
            read = self.family.read(config)
        except Exception:
            return None, None
        parts, values = self.parts(read), {}

        def same(key, expected):
            if key not in values:
                values[key] = self.attribute(parts.get(key[0]), key[1])
            return values[key] == expected

        for attributes, found in self.runs:
            if all(same(*row) for row in attributes.items()):
                return found
        attributes, get, recording = {}, PreTrainedConfig.__getattribute__, [False]

        def recorded(self_, name):
            key = type(self_), name
            if not recording[0] and parts.get(key[0]) is self_ and key not in attributes:
                recording[0] = True
                attributes[key] = self.attribute(self_, name)
                recording[0] = False
            return get(self_, name)

        with (
            mock.patch.object(PreTrainedConfig, "__getattribute__", recorded),
            mock.patch.object(t.GenerationConfig, "from_model_config", generation_defaults),
        ):
            loss, model = computed(self.family.kind, read, self.weights)
        file = None if model is None else self.weights.file(model)
        found = loss if file is not None else None, file
        if not any(name in COPIED for _, name in attributes):
            self.runs.append((attributes, found))
        return found


def ours(folder):
    """The same by Headgate; the message of a refusal; None without weights, which are read last."""
    try:
        found = headgate.load(folder).eval(TEXT, metrics=("loss",), seq_len=len(TEXT) - 1, threads=1)
        return found.figures["loss_nats"]
    except FileNotFoundError:
        return None
    except ValueError as error:
        return str(error).replace(str(folder), "")


def problem(family, base, path, value, folder, references):
    """What is wrong with a setting; None if nothing is."""
    config = with_value(base, path, value) if path else base
    folder.joinpath("config.json").write_text(json.dumps(family.written(config)))
    folder.joinpath("model.safetensors").unlink(missing_ok=True)
    names = [*path, *(re.findall(r'"(\w+)":', json.dumps(value)) if isinstance(value, dict) else ())]
    found = ours(folder)
    if found is not None and "\n" in found:
        return f"a message of several lines: {found}"
    if found is not None and any(name in found for name in names):
        return None
    large = value is ABSENT and path and path[-1] in LARGE
    expected, file = (None, None) if large else references.result(config)
    if file is not None:
        folder.joinpath("model.safetensors").hardlink_to(file)
    found = ours(folder)
    if isinstance(found, str):
        if "\n" in found:
            return f"a message of several lines: {found}"
        if expected is not None and not any(name in found for name in names):
            return f"refused without naming the key: {found}"
        return None
    if expected is None:
        return None
    if found is None:
        return "no weights are written"
    return None if abs(found - expected) < TOLERANCE else f"the loss is {found:.6f}, not {expected:.6f}"


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_of_the_family_are_followed_or_refused(name, tmp_path):
    family, problems, count = FAMILIES[name], [], 0
    references = References(family, Weights(tmp_path))
    for base, path, value in settings(name):
        count += 1
        wrong = problem(family, base, path, value, tmp_path, references)
        if wrong is not None:
            shown = "absent" if value is ABSENT else json.dumps(value)
            problems.append(f"{'.'.join(path)} = {shown}: {wrong}")
    assert count > 100
    assert not problems, "\n" + "\n".join(problems)
