# SPDX-License-Identifier: Apache-2.0
"""headgate.torch.flex.flex_attention against PyTorch's flex_attention in eager mode, which makes T × S scores and has no
gradients on CPUs, and against a formula that has."""

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, create_mask
from torch.nn.attention.flex_attention import flex_attention as eager

import headgate.torch.flex as flex
from headgate.torch.flex import flex_attention

B, HQ, HKV, T, S, D, DV = 2, 4, 2, 75, 90, 8, 6
DOCUMENT = torch.arange(S) // 31
LENGTHS = torch.tensor([40, 90])


MASKS = {
    "causal": lambda b, h, q, kv: q + S - T >= kv,
    "documents": lambda b, h, q, kv: (DOCUMENT[q] == DOCUMENT[kv]) & (q >= kv),
    "window and prefix": lambda b, h, q, kv: (kv < 5) | ((q >= kv) & (q - kv < 20)),
    "of sequences": lambda b, h, q, kv: kv < LENGTHS[b],
    "of heads": lambda b, h, q, kv: (kv + h) % 3 != 0,
    "rows that see nothing": lambda b, h, q, kv: q >= kv + 40,
    "all": lambda b, h, q, kv: kv >= 0,
}


def tensors_of(dtype=torch.float64):
    shapes = ((B, HQ, T, D), (B, HKV, S, D), (B, HKV, S, DV), (B, HQ, T, 1))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def block_mask_of(name, block=16):
    sizes = (B if name == "of sequences" else None, HQ if name == "of heads" else None, T, S)
    return create_block_mask(MASKS[name], *sizes, device="cpu", BLOCK_SIZE=block)


def expected_of(q, k, v, z, name):
    visible = create_mask(MASKS[name], B, HQ, T, S, device="cpu")
    k, v = (x.repeat_interleave(HQ // HKV, dim=1) for x in (k, v))
    scores = (0.3 * q @ k.mT).masked_fill(~visible, -1e300)
    y = torch.where(visible, scores.softmax(-1), 0.0) @ v
    lse = scores.logsumexp(-1).masked_fill(~visible.any(-1), -torch.inf)
    return (y if z is None else y * torch.sigmoid(z)), lse


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("gated", (True, False), ids=("gated", "plain"))
@pytest.mark.parametrize("name", MASKS)
def test_results_are_those_of_flex_attention_and_gradients_those_of_the_formula(name, gated):
    q, k, v, z = tensors_of()
    z = z if gated else None
    mask = block_mask_of(name)
    y, lse = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, scale=0.3, return_lse=True, gate=z)
    expected, theirs = expected_of(q, k, v, z, name)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(lse, theirs)
    if not gated:
        plain = eager(q.detach(), k.detach(), v.detach(), block_mask=mask, enable_gqa=True, scale=0.3)
        torch.testing.assert_close(y, plain)
    leaves = [x for x in (q, k, v, z) if x is not None]
    seen = torch.isfinite(lse)
    dy, dlse = torch.randn_like(y), torch.randn_like(lse)
    ours = torch.autograd.grad((y * dy).sum() + (lse * dlse)[seen].sum(), leaves)
    others = torch.autograd.grad((expected * dy).sum() + (theirs * dlse)[seen].sum(), leaves)
    for gradient, other in zip(ours, others):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("options", ({"gate_fn": "silu"}, {"gate_op": "add"}, {"softcap": 2.0}), ids=str)
def test_options_are_those_of_gated_attention(options):
    from headgate.torch import gated_attention

    q, k, v, z = leaves = tensors_of()
    y = flex_attention(q, k, v, block_mask=block_mask_of("causal"), enable_gqa=True, gate=z, **options)
    expected = gated_attention(q, k, v, z, causality="causal", **options)
    torch.testing.assert_close(y, expected)
    for ours, other in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (y, expected))):
        torch.testing.assert_close(ours, other)


def test_blocks_that_are_listed_without_a_mask_mod_are_seen_whole():
    numbers, indices = torch.tensor([[[1, 2]]]), torch.tensor([[[[1, 0], [0, 1]]]])
    mask = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=16, seq_lengths=(32, 32))
    q, k, v = (torch.randn(1, 2, 32, D) for _ in range(3))
    y = flex_attention(q, k, v, block_mask=mask)
    torch.testing.assert_close(y[:, :, :16], torch.nn.functional.scaled_dot_product_attention(q[:, :, :16], k[:, :, 16:], v[:, :, 16:]))  # fmt: skip
    torch.testing.assert_close(y[:, :, 16:], torch.nn.functional.scaled_dot_product_attention(q[:, :, 16:], k, v))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", ("of sequences", "of heads"))
def test_lists_of_one_sequence_and_head_serve_all_but_mask_mod_is_that_of_each(name):
    blocks_t, blocks_s = -(-T // 16), -(-S // 16)
    numbers = torch.full((1, 1, blocks_t), blocks_s)
    indices = torch.arange(blocks_s).expand(1, 1, blocks_t, blocks_s)
    mask = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=16, seq_lengths=(T, S), mask_mod=MASKS[name])
    q, k, v, _ = leaves = tensors_of()
    y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, scale=0.3)
    expected, _ = expected_of(q, k, v, None, name)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(y, eager(*(x.detach() for x in leaves[:3]), block_mask=mask, enable_gqa=True, scale=0.3))
    for ours, other in zip(*(torch.autograd.grad(x.square().sum(), leaves[:3]) for x in (y, expected))):
        torch.testing.assert_close(ours, other)


@pytest.mark.parametrize("masked", (True, False))
def test_keys_of_one_sequence_serve_all(masked):
    q, k, v, z = tensors_of()
    mask = block_mask_of("causal") if masked else None
    one = [x.detach()[:1].requires_grad_() for x in (k, v)]
    y = flex_attention(q, *one, block_mask=mask, enable_gqa=True, scale=0.3, gate=z)
    expected, _ = expected_of(q, *(x.expand(B, -1, -1, -1) for x in one), z, "causal" if masked else "all")
    torch.testing.assert_close(y, expected)
    for ours, other in zip(*(torch.autograd.grad(x.square().sum(), (q, *one, z)) for x in (y, expected))):
        torch.testing.assert_close(ours, other)


def test_queries_for_which_no_block_is_listed_see_nothing():
    """In a mask without full blocks."""
    numbers, indices = torch.tensor([[[1, 0]]]), torch.tensor([[[[1, 0], [0, 1]]]])
    mask = BlockMask.from_kv_blocks(numbers, indices, BLOCK_SIZE=16, seq_lengths=(32, 32), mask_mod=MASKS["all"])
    q, k, v = (torch.randn(1, 2, 32, D, requires_grad=True) for _ in range(3))
    y, lse = flex_attention(q, k, v, block_mask=mask, return_lse=True)
    assert (y[:, :, 16:] == 0).all() and (lse[:, :, 16:] == -torch.inf).all() and torch.isfinite(lse[:, :, :16]).all()
    dq, dk = torch.autograd.grad(y.square().sum(), (q, k))
    assert (dq[:, :, 16:] == 0).all() and (dk[:, :, :16] == 0).all() and dk.any()


def test_keys_that_no_block_lists_are_not_read_and_masks_are_of_a_block_of_queries():
    q, k, v = (torch.randn(1, 2, 256, D, requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < 32), None, None, 256, 256, device="cpu", BLOCK_SIZE=32)  # fmt: skip
    blocks = list(flex.query_blocks(mask))
    assert [(own.keys.start, own.keys.stop) for own in blocks] == [(max(0, n - 1) * 32, (n + 1) * 32) for n in range(8)]
    assert max(own.mask.numel() for own in blocks) == 32 * 64
    with torch.no_grad():
        k[:, :, :32], v[:, :, :32] = torch.nan, torch.nan
    y = flex_attention(q, k, v, block_mask=mask)
    assert torch.isfinite(y[:, :, 64:]).all() and torch.isnan(y[:, :, :32]).any()


def test_default_device_does_not_change_where_blocks_are_computed():
    q, k, v, _ = tensors_of()
    mask = block_mask_of("documents")
    expected = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    with torch.device("meta"):
        y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_dtypes_are_kept(dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors_of()]
    q, k, v, z = leaves
    mask = block_mask_of("documents")
    y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, scale=0.3, gate=z)
    gradients = torch.autograd.grad(y.float().sum(), leaves)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    expected = expected_of(*wide, "documents")[0]
    tolerance = 0.04 if dtype == torch.bfloat16 else 2e-5
    for ours, other in zip((y, *gradients), (expected, *torch.autograd.grad(expected.sum(), wide))):
        assert ours.dtype == dtype
        assert (ours.double() - other).abs().max() < tolerance * other.abs().max()


def test_second_derivatives_are_refused():
    q, k, v, _ = tensors_of()
    y = flex_attention(q, k, v, block_mask=block_mask_of("causal"), enable_gqa=True)
    (gradient,) = torch.autograd.grad(y.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    "changed, message",
    (
        ({"score_mod": lambda s, b, h, q, kv: s}, "score_mod is not supported: use gated_attention's bias"),
        ({"block_mask": torch.ones(T, S)}, "block_mask is a Tensor but must be a BlockMask"),
        (
            {"query": torch.randn(B, HQ, T + 1, D)},
            r"block_mask is of lengths \(75, 90\) but query and key have \(76, 90\)",
        ),
        ({"query": torch.randn(3, HQ, T, D)}, "block_mask is of 2 sequences but must be of 1 or 3"),
        ({"enable_gqa": False}, "query has 4 heads and key 2: set enable_gqa=True"),
        ({"value": torch.randn(B, HKV, S)}, r"value is \[2, 2, 90\] on cpu but must be a tensor"),
        ({"value": torch.randn(B, HKV, S + 6, DV)}, "value has 96 tokens but must have 90, as key has"),
        ({"gate": torch.randn(B, HQ, T, 5)}, "gate has shape"),
        ({"gate": torch.randn(B, HQ, T + 5, 1)}, "gate has 80 tokens but must have 75, as query has"),
        ({"block_mask": block_mask_of("causal").to("meta")}, "block_mask lies on meta but must be in the CPU's memory"),
        ({"gate_fn": "relu"}, "gate_fn: 'relu' is none of"),
    ),
)
def test_arguments_that_do_not_fit_are_named(changed, message):
    q, k, v, _ = (x.detach() for x in tensors_of())
    given = {
        "query": q,
        "key": k,
        "value": v,
        "block_mask": block_mask_of("of sequences"),
        "enable_gqa": True,
    } | changed
    with pytest.raises(ValueError, match=rf"^flex_attention: {message}") as error:
        flex_attention(**given)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_without_a_block_mask_every_key_is_visible():
    q, k, v, z = tensors_of()
    y, lse = flex_attention(q, k, v, None, None, 0.3, True, True, gate=z)
    expected, theirs = expected_of(q, k, v, z, "all")
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(lse, theirs)
    dy = torch.randn_like(y)
    for ours, other in zip(*(torch.autograd.grad(x, (q, k, v, z), dy) for x in (y, expected)), strict=True):
        torch.testing.assert_close(ours, other)
    y = flex_attention(q.detach(), k.detach(), v.detach(), enable_gqa=True)
    torch.testing.assert_close(y, eager(q.detach(), k.detach(), v.detach(), enable_gqa=True))
    with pytest.raises(ValueError, match="^flex_attention: value has shape"):
        flex_attention(q, k, v[:, :, 1:], enable_gqa=True)
    with pytest.raises(ValueError, match="^flex_attention: query has 4 heads and key 2: set enable_gqa=True"):
        flex_attention(q, k, v)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("masked", (True, False))
def test_auxiliary_outputs_are_those_of_flex_attention(masked):
    q, k, v, _ = (x.detach() for x in tensors_of())
    given = {"block_mask": block_mask_of("causal") if masked else None, "enable_gqa": True, "kernel_options": {}}
    for request in (AuxRequest(lse=True), AuxRequest()):
        (y, aux), (expected, theirs) = (f(q, k, v, return_aux=request, **given) for f in (flex_attention, eager))
        assert type(aux) is type(theirs) and aux.max_scores is None
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(aux.lse, theirs.lse)
    with pytest.raises(TypeError, match="^flex_attention: return_aux is True but must be an AuxRequest"):
        flex_attention(q, k, v, return_aux=True, **given)
    with pytest.raises(ValueError, match="^flex_attention: return_lse and return_aux cannot be given together"):
        flex_attention(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True), **given)


def test_transforms_are_refused_by_name():
    q, k, v, _ = (x.detach() for x in tensors_of())
    mask = block_mask_of("causal")

    def call(q, mask=mask):
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    for transformed, message in (
        (torch.func.grad(lambda q: call(q).sum()), "query is differentiated by torch.func, which is not supported"),
        (lambda q: torch.func.jvp(call, (q,), (q,)), "query has a tangent"),
        (lambda q: torch.func.vmap(call)(q[None]), "transforms of torch.func, such as vmap, are not supported"),
    ):
        with pytest.raises(RuntimeError, match=f"^flex_attention: {message}"):
            transformed(q)
    y = torch.func.vmap(lambda q: call(q, None))(q[None])
    torch.testing.assert_close(y[0], call(q, None))
