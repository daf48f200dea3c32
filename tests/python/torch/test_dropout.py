# SPDX-License-Identifier: Apache-2.0
"""Dropout of attention weights in PyTorch: gradients, seeds, and who asks for it."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import headgate
import headgate.torch.transformers
import models
import plain
from headgate.torch import gated_attention, scaled_dot_product_attention, use_everywhere

headgate.torch.transformers.register(functions=False)

P = 0.4
B, HQ, HKV, T, S, D = 2, 4, 2, 9, 12, 8


def problem():
    shapes = ((B, HQ, T, D), (B, HKV, S, D), (B, HKV, S, D), (B, HQ, T, 1))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def kept_by(seed, inputs):
    """The factors 0 or 1/(1 - P) of each weight."""
    arrays = [x.detach() for x in inputs]
    weights = headgate.attention_forward(*arrays, outputs=("y", "weights"), dropout=P, dropout_seed=seed).weights
    return (weights != 0).double() / (1 - P)


@pytest.mark.parametrize("general", (False, True), ids=("eager", "general"))
def test_outputs_and_gradients_are_those_of_the_dropped_weights(general):
    q, k, v, z = inputs = problem()
    kept = kept_by(5, inputs)
    scores = q @ k.repeat_interleave(2, 1).mT / D**0.5
    expected = plain.gated((scores.softmax(-1) * kept) @ v.repeat_interleave(2, 1), z, "sigmoid", "mul")
    dy = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, dy)
    with torch.autograd.profiler.profile(enabled=general):
        y, lse = gated_attention(*inputs, dropout=P, dropout_seed=5, return_lse=True)
        found = torch.autograd.grad(y, inputs, dy)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    for gradient, other in zip(found, wanted):
        torch.testing.assert_close(gradient, other)


def test_seeds_come_from_the_default_generator():
    inputs = problem()
    torch.manual_seed(3)
    first, second = (gated_attention(*inputs, dropout=P) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(gated_attention(*inputs, dropout=P, threads=2), first)
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    gated_attention(*inputs)
    gated_attention(*inputs, dropout=0.0)
    gated_attention(*inputs, dropout=P, dropout_seed=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_default_device_does_not_change_the_seeds():
    inputs = [x.detach() for x in problem()]
    found = []
    for device in ("cpu", "meta"):
        torch.manual_seed(3)
        with torch.device(device):
            found.append(gated_attention(*inputs, dropout=P))
    assert torch.equal(*found)


def test_checkpointed_call_drops_the_same_weights_again():
    inputs = problem()
    gradients = []
    for run in (gated_attention, lambda *x, **options: checkpoint(gated_attention, *x, use_reentrant=False, **options)):
        torch.manual_seed(4)
        gradients.append(torch.autograd.grad(run(*inputs, dropout=P).square().sum(), inputs))
    for found, expected in zip(*gradients):
        assert torch.equal(found, expected)


def test_mean_of_many_calls_is_the_output_without_dropout():
    q, k, v = (torch.randn(1, 4, 6, 8, dtype=torch.float64) for _ in range(3))
    outputs = torch.stack([scaled_dot_product_attention(q, k, v, dropout_p=0.2) for _ in range(2000)])
    error = (outputs.mean(0) - F.scaled_dot_product_attention(q, k, v)).abs()
    assert (error < 6 * outputs.std(0) / 2000**0.5).all()


def test_layers_of_pytorch_train_with_dropout():
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.3, batch_first=True)
    x = torch.randn(2, 7, 16)
    with use_everywhere() as served:
        assert not torch.equal(layer(x), layer(x))
        assert torch.equal(layer.eval()(x), layer(x))
    assert served.calls == 4 and not served.declined


def test_models_of_transformers_train_with_dropout():
    model = models.model("llama", "headgate", attention_dropout=0.1)
    ids = models.tokens(1, 9)
    torch.manual_seed(1)
    first, second = (model(ids).logits for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(model(ids).logits, first) and not torch.equal(first, second)
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_compiled_programs_leave_dropout_to_pytorch():
    q = torch.randn(1, 2, 5, 8)
    with use_everywhere() as served:
        compiled = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), backend="aot_eager")
        assert compiled(q).shape == q.shape
    assert served.calls == 0


def test_seed_given_a_compiled_program_drops_the_same_weights():
    inputs = problem()

    def run(*tensors):
        return gated_attention(*tensors, dropout=P, dropout_seed=7)

    assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(*inputs), run(*inputs))


def test_compiled_program_with_new_seeds_is_not_compiled_again():
    inputs = problem()
    backend = CompileCounterWithBackend("aot_eager")

    def run(seed):
        return gated_attention(*inputs, dropout=P, dropout_seed=seed)

    compiled = torch.compile(run, backend=backend, fullgraph=True)
    for seed in range(12):
        found, expected = compiled(seed), run(seed)
        assert torch.equal(found, expected)
        for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected))):
            assert torch.equal(ours, theirs)
    assert backend.frame_count <= 2  # with one seed, and with any


def test_vmap_examples_drop_the_same_weights_as_calls_of_their_own():
    x = torch.randn(3, B, HQ, T, D, dtype=torch.float64)

    def attend(x, **given):
        return gated_attention(x, x, x, dropout=P, **given)

    def loss(x):
        return attend(x, dropout_seed=7).square().sum()

    for mapped, function in ((attend, vmap(attend, randomness="same")), (loss, vmap(grad(loss)))):
        torch.manual_seed(5)
        found = function(x)
        for own, example in zip(x, found, strict=True):
            torch.manual_seed(5)
            torch.testing.assert_close(example, (grad(loss) if mapped is loss else attend)(own), rtol=0, atol=0)


@pytest.mark.parametrize("randomness", ("error", "different"))
def test_vmap_without_a_seed_or_the_same_randomness_is_refused(randomness):
    x = torch.randn(3, B, HQ, T, D)
    with pytest.raises(
        RuntimeError, match=r"^gated_attention: dropout under torch.func.vmap needs randomness='same', or"
    ):
        vmap(lambda x: gated_attention(x, x, x, dropout=P), randomness=randomness)(x)
