# SPDX-License-Identifier: Apache-2.0
"""Attention whose heads or sequences two processes share: DTensor, parallelize_module and retrofitted gates."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import processes
from headgate.torch import GatedAttention, gated_attention, scaled_dot_product_attention

B, HQ, HKV, T, D, C = 2, 4, 2, 5, 3, 24


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def assert_near(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


CASES = {
    "plain": (4, {}),
    "gate that may be 0": (4, {"gate_fn": "silu"}),
    "bthd": (4, {"layout": "bthd"}),
    "bias": (4, {"bias": (B, HQ, T, T)}),
    "bias of all": (4, {"bias": (1, 1, T, T)}),
    "sinks": (4, {"sinks": (HQ,)}),
    "sinks of each query": (4, {"sinks": (B, HQ, T)}),
    "sinks of each query of all": (4, {"sinks": (1, HQ, T)}),
    "no batch": (3, {"causality": "causal"}),
}


def with_dtensors(shared):
    """Values, gradients and placements are those of one process; forward without communication."""
    for name, (dims, options) in CASES.items():
        torch.manual_seed(1)
        shapes = [(B, HQ, T, D), (B, HKV, T, D), (B, HKV, T, D), (B, HQ, T, 1)]
        rows = options.get("layout") == "bthd"
        shapes = [(b, n, h, f) if rows else (b, h, n, f) for b, h, n, f in shapes]
        tensors = {key: normal(*shape[4 - dims :]) for key, shape in zip(("q", "k", "v", "gate"), shapes)}
        learned = {key: normal(*value) for key, value in options.items() if isinstance(value, tuple)}
        words = {key: value for key, value in options.items() if key not in learned}
        leaves = {key: x.requires_grad_() for key, x in {**tensors, **learned}.items()}
        y = gated_attention(**leaves, **words)
        expected = torch.autograd.grad(y.square().sum(), list(leaves.values()))
        if dims == 3 and shared == "batch":
            continue
        at = 0 if shared == "batch" else dims - 3 + rows
        dims_of = {key: at for key in tensors} | {"sinks": None if shared == "batch" else 0, "bias": None}
        for key in learned:
            if learned[key].dim() > 1:
                dims_of[key] = int(shared != "batch") if learned[key].shape[0] != 1 else None
        if "sinks" in learned and learned["sinks"].dim() > 1 and shared != "batch":
            dims_of["sinks"] = 1
        placed = {
            key: distribute_tensor(x.detach(), mesh(), [Replicate() if dims_of[key] is None else Shard(dims_of[key])])
            for key, x in leaves.items()
        }
        placed = {key: x.requires_grad_() for key, x in placed.items()}
        with CommDebugMode() as communication:
            found = gated_attention(**placed, **words)
        gradients = torch.autograd.grad((found.to_local() ** 2).sum(), list(placed.values()))
        assert communication.get_total_counts() == 0, name
        assert found.placements == (Shard(at),), name
        assert_near(found.full_tensor(), y)
        for ours, theirs in zip(gradients, expected, strict=True):
            assert_near(ours.full_tensor() if isinstance(ours, DTensor) else ours, theirs)


def sharded_otherwise():
    """q that is sharded over its rows is redistributed."""
    q = normal(B, HQ, 2 * T, D)
    placed = distribute_tensor(q, mesh(), [Shard(2)])
    assert_near(gated_attention(placed, placed, placed).full_tensor(), gated_attention(q, q, q))


def with_slopes_of_each_sequence(shared):
    q, k, slopes = normal(B, HQ, T, D), normal(B, HKV, T, D), normal(B, HQ).abs()
    whole = [Shard(0 if shared == "batch" else 1)]
    placed = [distribute_tensor(x, mesh(), whole) for x in (q, k, k)]
    found = gated_attention(*placed, alibi_slopes=distribute_tensor(slopes, mesh(), [Replicate()]))
    assert found.placements == tuple(whole)
    assert_near(found.full_tensor(), gated_attention(q, k, k, alibi_slopes=slopes))


def with_fewer_queries_than_keys():
    q, k = normal(B, HQ, T, D), normal(B, HQ, T + 2, D)
    placed = [distribute_tensor(x, mesh(), [Shard(1)]) for x in (q, k, k)]
    found = scaled_dot_product_attention(*placed, is_causal=True)
    assert_near(found.full_tensor(), scaled_dot_product_attention(q, k, k, is_causal=True))


PLAN = {
    "q_proj": ColwiseParallel(),
    "k_proj": ColwiseParallel(),
    "v_proj": ColwiseParallel(),
    "gate_proj": ColwiseParallel(),
    "o_proj": RowwiseParallel(),
}


def with_parallel_layers():
    for keys in LAYERS:
        compare_layers(keys)
    layer = GatedAttention(C, HQ, HKV, 8)
    layer = parallelize_module(layer, mesh(), {name: PLAN[name] for name in ("q_proj", "gate_proj", "o_proj")})
    message = f"^GatedAttention: this process has {HQ // 2} of {HQ} query heads but {HKV} of {HKV} key/value heads: "
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(B, T, C))


def compare_layers(keys):
    def made():
        torch.manual_seed(3)
        return GatedAttention(C, HQ, HKV, 8, initializer_range=0.2, gate_init_std=0.2, **keys)

    whole, layer = made(), made()
    plan = {name: style for name, style in PLAN.items() if hasattr(layer, name)}
    layer = parallelize_module(layer, mesh(), plan)
    h = torch.randn(B, T, C)
    dist.broadcast(h, 0)
    found = []
    for module in (whole, layer):
        out = module(h)
        out.square().mean().backward()
        gradients = {name: p.grad for name, p in module.named_parameters()}
        found.append({"out": out, **gradients})
    expected, ours = found
    assert layer.q_proj.weight.to_local().shape[0] == layer.q_proj.weight.shape[0] // 2
    for name, other in expected.items():
        mine = ours[name].full_tensor() if isinstance(ours[name], DTensor) else ours[name]
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def with_retrofitted_models(gate_first):
    import models
    from headgate.torch import gate_parameters, retrofit

    def parallelized(model):
        plan = {name: style for name, style in PLAN.items() if name != "gate_proj"}
        if gate_first:
            plan["attention_gate"] = ColwiseParallel()
        for layer in model.model.layers:
            parallelize_module(layer.self_attn, mesh(), plan)
        return model

    whole, model = retrofit(models.model("llama")), models.model("llama")
    model = parallelized(retrofit(model)) if gate_first else retrofit(parallelized(model))
    torch.manual_seed(5)
    others = gate_parameters(model)
    for name, parameter in gate_parameters(whole).items():
        torch.nn.init.normal_(parameter, std=0.3)
        with torch.no_grad():
            others[name].copy_(distribute_tensor(parameter.detach(), mesh(), [Shard(0)]))
    torch.manual_seed(6)
    ids = models.tokens(2, 7)
    found = []
    for one in (whole, model):
        logits = one(ids).logits
        logits.square().mean().backward()
        gate = one.model.layers[0].self_attn.attention_gate.weight.grad
        found.append((logits, gate.full_tensor() if isinstance(gate, DTensor) else gate))
    for ours, expected in zip(found[1], found[0]):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def mixed():
    q = normal(B, HQ, T, D)
    placed = distribute_tensor(q, mesh(), [Shard(1)])
    with pytest.raises(ValueError, match="gated_attention: k is a plain tensor but q is a DTensor: distribute it"):
        gated_attention(placed, q, placed)
    of_others = distribute_tensor(q, DeviceMesh("cpu", [1, 0]), [Replicate()])
    with pytest.raises(
        ValueError, match="gated_attention: v lies on another device mesh than q: distribute it over q's"
    ):
        gated_attention(placed, placed, of_others)
    with pytest.raises(ValueError, match="gated_attention: return_max_logit does not support DTensors"):
        gated_attention(placed, placed, placed, return_max_logit=True)
    with pytest.raises(ValueError, match="gated_attention: dropout does not support DTensors: call it on their local"):
        gated_attention(placed, placed, placed, dropout=0.1)


def with_heads_that_share_a_gate():
    layer = GatedAttention(C, HQ, HKV, 8, gate_grain="head_shared")
    parallelize_module(layer, mesh(), PLAN)
    with pytest.raises(ValueError, match="this process has 2 of 4 heads, which share a gate"):
        layer(torch.randn(B, T, C))


@pytest.mark.parametrize("shared", ["batch", "heads"])
def test_dtensors_are_computed_without_communication(shared):
    processes.run(2, with_dtensors, shared)


def test_dtensors_sharded_otherwise_are_redistributed():
    processes.run(2, sharded_otherwise)


@pytest.mark.parametrize("shared", ["batch", "heads"])
def test_slopes_of_each_sequence_are_divided_as_q(shared):
    processes.run(2, with_slopes_of_each_sequence, shared)


def test_causal_queries_of_pytorchs_function_stand_at_the_first_keys():
    processes.run(2, with_fewer_queries_than_keys)


LAYERS = (
    {},
    {"gate_grain": "headwise", "attention_sinks": "off_by_one", "gate_bias": "bias"},
    {"gate_layout": "per_query_head"},
    {"gate_layout": "per_group", "gate_grain": "headwise"},
    {"gate_site": "g2"},
    {"gate_site": "none", "attention_output_control": "head_rmsnorm", "qk_norm": "none"},
)


def test_parallelized_layers_match_the_whole():
    processes.run(2, with_parallel_layers)


def test_plain_tensors_beside_dtensors_max_logit_and_dropout_are_refused():
    processes.run(2, mixed)


@pytest.mark.parametrize("gate_first", [True, False])
def test_retrofitted_and_parallelized_model_matches_the_whole(gate_first):
    processes.run(2, with_retrofitted_models, gate_first)


def test_heads_that_share_a_gate_are_refused():
    processes.run(2, with_heads_that_share_a_gate)
