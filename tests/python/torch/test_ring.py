# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.ring_attention and its shards, on 1, 2 and 4 processes, against the whole sequence on one."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import headgate
import processes
from headgate.torch import gated_attention, gather_sequence, ring_attention, shard_sequence
from headgate.torch.arguments import OPTIONS, TENSORS
from headgate.torch.sharding import shard_positions

B, HQ, HKV, T, D, DV = 2, 4, 2, 24, 8, 12  # T is cut into 8 chunks by 4 ranks

# What each case gives: the grain of the gate, and arguments.
CASES = {
    "none": ("none", {}),
    "headwise": ("headwise", {}),
    "causal": ("none", {"causality": "causal"}),
    "causal headwise": ("headwise", {"causality": "causal"}),
    "causal elementwise": ("elementwise", {"causality": "causal", "gate_fn": "sigmoid2"}),
    "contiguous": ("headwise", {"sharding": "contiguous"}),
    "causal contiguous": ("elementwise", {"causality": "causal", "sharding": "contiguous"}),
    "window": ("headwise", {"causality": "causal", "window_left": 5}),
    "window contiguous": ("headwise", {"causality": "causal", "window_left": 5, "sharding": "contiguous"}),
    "both sides": ("elementwise", {"window_left": 2, "window_right": 4}),
    "own token": ("headwise", {"window_left": 0, "window_right": 0, "sharding": "contiguous"}),
    "softcap and scale": ("headwise", {"causality": "causal", "softcap": 1.5, "scale": 0.7}),
    "sinks": ("headwise", {"causality": "causal", "sinks": True}),
    "sinks alone": ("none", {"sinks": True}),
    "alibi": ("headwise", {"alibi_slopes": torch.tensor([0.5, 0.1, 0.9, 0.3])}),
    "lengths": ("elementwise", {"key_lengths": torch.tensor([T, 7]), "causality": "causal"}),
    "no keys": ("headwise", {"key_lengths": torch.tensor([3, 0])}),
    "no keys but a sink": ("elementwise", {"key_lengths": torch.tensor([0, 3]), "sinks": True}),
    "silu": ("elementwise", {"causality": "causal", "gate_fn": "silu"}),
    "added": ("elementwise", {"causality": "causal", "gate_op": "add"}),
}


def problem(gate, options, dtype):
    """Returns leaves by name, of the whole sequence, and the gradients of y and lse; the same on every rank."""
    torch.manual_seed(1)
    leaves = {"q": torch.randn(B, HQ, T, D), "k": torch.randn(B, HKV, T, D), "v": torch.randn(B, HKV, T, DV)}
    if gate != "none":
        leaves["gate"] = torch.randn(B, HQ, T, 1 if gate == "headwise" else DV)
    leaves = {name: x.to(dtype) for name, x in leaves.items()}
    if options.get("sinks"):
        leaves["sinks"] = torch.randn(HQ, dtype=torch.promote_types(dtype, torch.float32))
    incoming = torch.randn(B, HQ, T, DV).to(dtype), torch.randn(B, HQ, T).to(torch.promote_types(dtype, torch.float32))
    return {name: x.requires_grad_() for name, x in leaves.items()}, incoming


def assert_near(ours, expected, tolerance):
    assert ours.shape == expected.shape and ours.dtype == expected.dtype
    scale = max(1.0, expected.abs()[expected.isfinite()].max().item())
    torch.testing.assert_close(ours / scale, expected / scale, rtol=0, atol=tolerance)


def compare(name, dtype, tolerance, layout="bhtd"):
    """On a rank: compares y, lse and every gradient with gated_attention over the whole."""
    gate, options = CASES[name]
    sharding = options.get("sharding", "balanced")
    leaves, (dy, dlse) = problem(gate, options, dtype)
    rules = {key: value for key, value in options.items() if key not in ("sharding", "sinks")}
    whole = gated_attention(**leaves, **rules, return_lse=True)
    expected = dict(zip(leaves, torch.autograd.grad(whole, list(leaves.values()), (dy, dlse))))

    def shard(x):
        part = shard_sequence(x.detach(), 2, sharding=sharding)
        return part.transpose(1, 2).contiguous() if layout == "bthd" and x.dim() == 4 else part

    own = {key: (x.detach().clone() if key == "sinks" else shard(x)).requires_grad_() for key, x in leaves.items()}
    found = ring_attention(**own, **rules, sharding=sharding, layout=layout, return_lse=True)
    gradients = dict(zip(own, torch.autograd.grad(found, list(own.values()), (shard(dy), shard(dlse)))))
    for ours, theirs in zip(found, map(shard, whole)):
        assert_near(ours, theirs, tolerance)
    for key, ours in gradients.items():
        if key == "sinks":
            dist.all_reduce(ours)
        assert_near(ours, expected[key] if key == "sinks" else shard(expected[key]), 3 * tolerance)


def compare_all():
    for name in CASES:
        try:
            compare(name, torch.float32, 2e-6)
        except AssertionError as error:
            raise AssertionError(f"case '{name}'") from error
    compare("causal elementwise", torch.float32, 2e-6, "bthd")
    compare("alibi", torch.float64, 1e-14)
    compare("sinks", torch.float64, 1e-14, "bthd")
    for name in ("causal headwise", "added", "lengths"):
        compare(name, torch.bfloat16, 8e-3)
        compare(name, torch.float16, 1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_agrees_with_the_whole_sequence(ranks):
    processes.run(ranks, compare_all)


def compare_with_torch():
    """Compares f32 with PyTorch's own attention in its plain form, gated by PyTorch."""
    for causal, sharding in ((True, "balanced"), (False, "contiguous")):
        leaves, (dy, _) = problem("elementwise", {}, torch.float32)
        with sdpa_kernel(SDPBackend.MATH):
            whole = scaled_dot_product_attention(*(leaves[x] for x in "qkv"), is_causal=causal, enable_gqa=True)
        whole = whole * torch.sigmoid(leaves["gate"])
        whole.backward(dy)
        own = {key: shard_sequence(x.detach(), 2, sharding=sharding).requires_grad_() for key, x in leaves.items()}
        y = ring_attention(**own, causality="causal" if causal else "none", sharding=sharding)
        y.backward(shard_sequence(dy, 2, sharding=sharding))
        assert_near(gather_sequence(y.detach(), 2, sharding=sharding), whole.detach(), 2e-6)
        for key, x in own.items():
            assert_near(gather_sequence(x.grad, 2, sharding=sharding), leaves[key].grad, 5e-6)


def test_agrees_with_pytorch():
    processes.run(4, compare_with_torch)


def partly(learned, sharding):
    """On a rank: computes gradients if only some inputs need one."""
    leaves, (dy, _) = problem("headwise", {}, torch.float32)
    whole = gated_attention(**leaves, causality="causal")
    expected = torch.autograd.grad(whole, [leaves[name] for name in learned], dy)
    own = {name: shard_sequence(x.detach(), 2, sharding=sharding) for name, x in leaves.items()}
    for name in learned:
        own[name].requires_grad_()
    y = ring_attention(**own, causality="causal", sharding=sharding)
    y.backward(shard_sequence(dy, 2, sharding=sharding))
    for name, theirs in zip(learned, expected):
        assert_near(own[name].grad, shard_sequence(theirs, 2, sharding=sharding), 5e-6)
    assert all(own[name].grad is None for name in own if name not in learned)


def partly_all():
    for learned in (["q"], ["v"], ["gate"], ["k", "gate"]):
        partly(learned, "balanced")
        partly(learned, "contiguous")
    leaves, _ = problem("none", {}, torch.float32)  # a loss of the log-sum-exp alone
    own = {name: shard_sequence(x.detach(), 2).requires_grad_() for name, x in leaves.items()}
    ring_attention(**own, causality="causal", return_lse=True)[1].sum().backward()
    gated_attention(**leaves, causality="causal", return_lse=True)[1].sum().backward()
    for name, x in own.items():
        assert_near(x.grad, shard_sequence(leaves[name].grad, 2), 5e-6)


def test_gradients_of_some_inputs_are_computed_alone():
    processes.run(2, partly_all)


def same_bits():
    """On a rank: repeats a call three times, the second time on two threads."""
    found = []
    for threads in (1, 2, 1):
        leaves, (dy, _) = problem("elementwise", {}, torch.bfloat16)
        own = {name: shard_sequence(x.detach(), 2).requires_grad_() for name, x in leaves.items()}
        y = ring_attention(**own, causality="causal", threads=threads)
        found.append([y.detach(), *torch.autograd.grad(y, list(own.values()), shard_sequence(dy, 2))])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other))


def test_ring_repeated_gives_the_same_bits():
    processes.run(2, same_bits)


def observed(sharding, options):
    """On a rank, forward and backward: records what it does, in order, and how many bytes it sends."""
    events, sent = [], {"forward": 0, "backward": 0}
    attend, differentiate, exchange = headgate.attention_forward, headgate.attention_backward, dist.batch_isend_irecv

    def attention_forward(q, *others, **given):
        if q.shape[2] > 0:  # not the check of the arguments
            events.append("attention")
        return attend(q, *others, **given)

    def attention_backward(*given, **named):
        events.append("gradients")
        return differentiate(*given, **named)

    def batch_isend_irecv(operations):
        assert [operation.op for operation in operations] == [dist.isend, dist.irecv]
        events.append("exchange")
        sent[phase] += operations[0].tensor.nbytes
        return exchange(operations)

    headgate.attention_forward, headgate.attention_backward = attention_forward, attention_backward
    dist.batch_isend_irecv = batch_isend_irecv
    try:
        leaves, (dy, _) = problem("headwise", {}, torch.bfloat16)
        own = {name: shard_sequence(x.detach(), 2, sharding=sharding).requires_grad_() for name, x in leaves.items()}
        phase = "forward"
        y = ring_attention(**own, sharding=sharding, **options)
        phase = "backward"
        y.backward(shard_sequence(dy, 2, sharding=sharding))
    finally:
        headgate.attention_forward, headgate.attention_backward = attend, differentiate
        dist.batch_isend_irecv = exchange
    return events, sent, own["k"].nbytes + own["v"].nbytes


def test_balanced_ranks_causal_do_equal_work():
    found = processes.run(4, observed, "balanced", {"causality": "causal"})
    for events, sent, shard in found:
        assert events.count("attention") == events.count("gradients") == 2 * 4 + 1  # of 16 pairs of chunks
        # Keys and values go to three ranks; backward again, and their gradients in f32 to three ranks and home.
        assert sent == {"forward": 3 * shard, "backward": 3 * shard + 4 * 2 * shard}
        assert events[:2] == ["exchange", "attention"]  # the next keys are on their way while the first are used
    contiguous = processes.run(4, observed, "contiguous", {"causality": "causal"})
    assert [events.count("attention") for events, *_ in contiguous] == [1, 2, 3, 4]


def test_keys_that_no_rank_sees_are_not_sent():
    window = {"causality": "causal", "window_left": T // 4}  # the shard before the own one
    for rank, (events, sent, shard) in enumerate(processes.run(4, observed, "contiguous", window)):
        assert events.count("attention") == events.count("gradients") == (1 if rank == 0 else 2)
        assert sent == {"forward": shard, "backward": shard + 2 * 2 * shard}
    for events, sent, _ in processes.run(4, observed, "contiguous", {"window_left": 0, "window_right": 0}):
        assert events == ["attention", "gradients"] and sent == {"forward": 0, "backward": 0}


def within_a_group():
    """On four ranks: gives the odd ones a sequence of their own."""
    group = dist.new_group([1, 3])
    leaves, _ = problem("headwise", {}, torch.float32)
    x = {name: leaf.detach() for name, leaf in leaves.items()}
    if dist.get_rank() % 2 == 0:
        with pytest.raises(ValueError, match="ring_attention: this process is not one of the group"):
            ring_attention(**x, group=group)
        return
    own = {name: shard_sequence(leaf, 2, group=group) for name, leaf in x.items()}
    y = gather_sequence(ring_attention(**own, group=group, causality="causal"), 2, group=group)
    assert_near(y, gated_attention(**x, causality="causal"), 2e-6)


def test_ring_group_of_some_ranks_agrees():
    processes.run(4, within_a_group)


def shards():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for x in (torch.arange(2 * 16).view(2, 16), torch.rand(2, 16, 3) > 0.5, torch.rand(2, 16, 1).bfloat16()):
        dist.broadcast(x, 0)
        for sharding in ("balanced", "contiguous"):
            for dim in (1, 1 - x.dim()):
                assert torch.equal(
                    gather_sequence(shard_sequence(x, dim, sharding=sharding), dim, sharding=sharding), x
                )
    whole = torch.arange(16)
    assert shard_sequence(whole, 0).tolist() == [*range(2 * rank, 2 * rank + 2), *range(14 - 2 * rank, 16 - 2 * rank)]
    assert shard_sequence(whole, 0, sharding="contiguous").tolist() == [*range(4 * rank, 4 * rank + 4)]
    for sharding in ("balanced", "contiguous"):
        assert torch.equal(shard_positions(4, sharding=sharding), shard_sequence(whole, 0, sharding=sharding))
    x = torch.rand(16, requires_grad=True)
    shard_sequence(x, 0).sum().backward()
    assert x.grad.sum() == 16 // ranks and torch.equal(shard_sequence(x.grad, 0), torch.ones(4))
    for call, message in (
        (
            lambda: shard_sequence(torch.rand(20), 0),
            "shard_sequence: 20 tokens cannot be cut into 8 equal chunks for 4",
        ),
        (lambda: shard_sequence(torch.rand(8), 0, sharding="even"), "shard_sequence: sharding: 'even' is none of"),
        (lambda: shard_positions(3), "shard_positions: a balanced shard of 3 tokens cannot be cut"),
        (lambda: gather_sequence(torch.rand(3), 0), "gather_sequence: a balanced shard of 3 tokens cannot be cut"),
        (lambda: gather_sequence(x, 0), "gather_sequence: x requires a gradient"),
        (lambda: gather_sequence(torch.rand(4 + 2 * rank), 0), r"x is float32 \(4\) on rank 0 but float32 \(6\) on"),
        (lambda: shard_sequence(torch.rand(16), 1), "^shard_sequence: dim is 1 but x has 1 dimensions$"),
        (lambda: gather_sequence(torch.rand(4), -2), "^gather_sequence: dim is -2 but x has 1 dimensions$"),
        (lambda: gather_sequence(torch.rand(4), "a" if rank == 1 else 0), "gather_sequence: dim is 'a' but x has 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    given, kind = ([1.0], TypeError) if rank == 1 else (torch.rand(4), ValueError)
    with pytest.raises(kind, match="gather_sequence: x is a list but must be a tensor$"):
        gather_sequence(given, 0)


def lazy_negation():
    """Compares lazy with plain tensors: every argument negated, and a conjugate that is gathered."""
    own = [torch.randn(1, 2, 8, 4, dtype=torch.cfloat).conj().imag for _ in range(4)]
    plain = [torch.empty(x.shape).copy_(x) for x in own]
    assert all(x.is_neg() for x in own)
    assert torch.equal(ring_attention(*own, causality="causal"), ring_attention(*plain, causality="causal"))
    x = torch.randn(1, 8, dtype=torch.cfloat)
    conjugate = torch.empty_like(x).copy_(x.conj())
    for lazy, expected in ((own[0], plain[0]), (x.conj(), conjugate)):
        assert torch.equal(gather_sequence(lazy, 1), gather_sequence(expected, 1))


@pytest.mark.parametrize("ranks", (1, 2))
def test_lazy_negation_is_resolved(ranks):
    processes.run(ranks, lazy_negation)


def test_shards_of_a_sequence():
    processes.run(4, shards)


def refused():
    """On two ranks: expects the same kind of error on both, and a group that still works."""
    rank = dist.get_rank()
    leaves, _ = problem("headwise", {}, torch.float32)
    own = {name: shard_sequence(x.detach(), 2) for name, x in leaves.items()}
    learned = own["k"].clone().requires_grad_()
    odd = {name: x[:, :, :-1] for name, x in own.items()}
    for change, message in (
        ({"mask": torch.ones(1, 1, T // 2, T, dtype=torch.bool)}, "ring_attention: mask is not supported"),
        ({"cu_seqlens_q": torch.tensor([0, T])}, "ring_attention: cu_seqlens_q is not supported"),
        ({"dropout": 0.5, "dropout_seed": 1}, "ring_attention: dropout is not supported"),
        ({"precision": "native16"}, "ring_attention: precision is not supported"),
        ({"return_max_logit": True}, "ring_attention: return_max_logit is not supported"),
        ({"sharding": "even"}, "ring_attention: sharding: 'even' is none of balanced, contiguous"),
        ({"causality": "backwards"}, "causality: 'backwards' is none of"),
        ({"layout": "thbd"}, "layout"),
        ({"causality": True}, "^ring_attention: causality: 'True' is none of none, causal"),
        ({"threads": 1.5}, "^ring_attention: threads is 1.5 but must be a whole number"),
        ({"scale": torch.nn.Parameter(torch.tensor(0.5))}, "^ring_attention: scale requires a gradient but has none"),
        ({"gate": own["gate"].repeat(1, 1, 1, 3)}, "^ring_attention: gate has shape"),
        ({"gate": own["gate"][:, :, :5]}, "^ring_attention: gate has 5 tokens but q has 12"),
        ({"gate_fn": "tanh"}, "gate_fn: 'tanh' is none of"),
        ({"k": own["k"].bfloat16()}, "k has dtype bf16 but q has dtype f32"),
        ({"v": own["v"][:, :, :5]}, "ring_attention: v has 5 tokens but q has 12"),
        ({"q": own["q"][0, 0]}, r"ring_attention: q must be a tensor \(B,H,T,D\)"),
        ({name: x[:, :, :0] for name, x in own.items()}, "ring_attention: q has no tokens"),
        ({**odd, "causality": "causal"}, "ring_attention: a balanced shard of 11 tokens cannot be cut into 2"),
        ({"sinks": torch.zeros(3)}, "sinks has shape"),
        ({"sinks": torch.zeros(1, HQ, 12)}, "^ring_attention: sinks is float32 .* but must be of one dimension"),
        ({"key_lengths": torch.tensor([1.0, 2.0])}, r"key_lengths is float32 \(2\) but must be integers \(2\)"),
        ({"key_lengths": torch.tensor([1, T + 1])}, f"key_lengths must lie within 0 and {T}"),
        ({"alibi_slopes": torch.ones(HQ).requires_grad_()}, "ring_attention: alibi_slopes requires a gradient"),
        # On one rank alone, or another on each:
        (
            {"softcap": -5.0} if rank == 1 else {},
            f"^ring_attention: {'' if rank == 1 else 'refused on rank 1: ring_attention: '}softcap",
        ),
        (
            {"gate": None} if rank == 1 else {},
            "^ring_attention: gate is float32 .* on rank 0 but absent on rank 1",
        ),
        (
            {"k": own["k"][:, :1], "v": own["v"][:, :1]} if rank == 1 else {},
            r"k is .* \(2,2,12,8\) on rank 0 but .* \(",
        ),
        ({name: x[:1] for name, x in own.items()} if rank == 0 else {}, r"q is .* \(1,4,12,8\) on rank 0 but .*"),
        ({"causality": "causal"} if rank == 0 else {}, "causality is causal on rank 0 but none on rank 1"),
        ({"scale": 1.0 + rank}, "scale is 1.0 on rank 0 but 2.0 on rank 1"),
        ({"key_lengths": torch.tensor([4, 4 + rank])}, r"key_lengths is \(4, 4\) on rank 0 but \(4, 5\) on rank 1"),
        ({"k": learned} if rank == 1 else {}, "the gradient of k and v is not wanted on rank 0 but wanted on rank 1"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            ring_attention(**{**own, **change})
        assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match="v is a list but must be a tensor"):
        ring_attention(own["q"], own["k"], [1.0])
    with pytest.raises(
        TypeError, match=r"^ring_attention\(\) got .* argument 'causal'; did you mean causality='causal'\?$"
    ):
        ring_attention(**own, causal=True)
    with pytest.raises(TypeError, match="ring_attention.. got both gate and gate_logits, its old name"):
        ring_attention(**own, gate_logits=own["gate"])
    old = {"gate_logits" if name == "gate" else name: x for name, x in own.items()}
    with pytest.warns(DeprecationWarning, match="^ring_attention: gate_logits is an old name of gate$"):
        assert torch.equal(ring_attention(**old), ring_attention(**own))
    y = ring_attention(own["q"].requires_grad_(), own["k"], own["v"])
    with pytest.raises(RuntimeError, match="ring_attention: gradients of gradients"):
        torch.autograd.grad(y.sum(), own["q"], create_graph=True)
    for transform in (
        lambda: torch.func.grad(lambda x: ring_attention(x, x, x).sum()),
        lambda: torch.func.jacfwd(lambda x: ring_attention(x, x, x)),
    ):
        with pytest.raises(RuntimeError, match="ring_attention: q (is differentiated by torch.func|has a tangent)"):
            transform()(own["q"].detach())
    assert y.isfinite().all()


def test_arguments_bad_are_refused_on_every_rank():
    processes.run(2, refused)


def test_ring_without_a_process_group_is_refused():
    x = torch.randn(1, 1, 4, 4)
    for call in (lambda: ring_attention(x, x, x), lambda: shard_sequence(x, 2), lambda: gather_sequence(x, 2)):
        with pytest.raises(ValueError, match="torch.distributed has no process group: call init_process_group first"):
            call()


def as_pytorch_uses_it():
    """On two ranks: uses autocast, activation checkpoints, tensors without a batch, and views."""
    leaves, (dy, _) = problem("headwise", {}, torch.float32)
    own = {name: shard_sequence(x.detach(), 2).requires_grad_() for name, x in leaves.items()}
    y = ring_attention(**own, causality="causal")
    y.backward(shard_sequence(dy, 2))
    again = {name: x.detach().clone().requires_grad_() for name, x in own.items()}
    kept = torch.utils.checkpoint.checkpoint(lambda: ring_attention(**again, causality="causal"), use_reentrant=False)
    kept.backward(shard_sequence(dy, 2))
    assert torch.equal(kept, y) and all(torch.equal(own[name].grad, again[name].grad) for name in own)
    ungated = ring_attention(**own, gate_fn="none")
    assert torch.equal(ungated, ring_attention(own["q"], own["k"], own["v"]))
    assert torch.autograd.grad(ungated.sum(), own["gate"], allow_unused=True) == (None,)
    single = {name: x.detach()[1] for name, x in own.items()}
    assert torch.equal(ring_attention(**single, causality="causal"), y[1])
    strided = {name: x.detach().transpose(1, 2).contiguous().transpose(1, 2) for name, x in own.items()}
    assert torch.equal(ring_attention(**strided, causality="causal"), y)
    compiled = torch.compile(lambda q: ring_attention(torch.abs(q), q, q) + 1, backend="aot_eager")
    q = own["q"].detach()
    assert torch.equal(compiled(q), ring_attention(q.abs(), q, q) + 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = ring_attention(**own, causality="causal")
    narrow = {name: x.detach() if name == "gate" else x.detach().bfloat16() for name, x in own.items()}
    assert half.dtype == torch.bfloat16 and torch.equal(half, ring_attention(**narrow, causality="causal"))


def test_ring_under_checkpoint_compile_and_autocast_agrees():
    processes.run(2, as_pytorch_uses_it)


def test_arguments_are_those_of_the_operation():
    """Every argument of gated_attention is taken, or refused by name; those taken have the same defaults."""
    ours, theirs = (inspect.signature(f).parameters for f in (ring_attention, gated_attention))
    shared = [name for name in ours if name not in ("group", "sharding")]
    assert all(ours[name].default == theirs[name].default for name in shared)
    assert set(theirs) - set(shared) <= {*TENSORS, *OPTIONS, "return_max_logit"}
