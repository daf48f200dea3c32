# SPDX-License-Identifier: Apache-2.0
"""precision="native16" where other code calls attention: use_everywhere(), transformers and fold; and of linear
attention. Which calls have it, and their results beside exact ones."""

import pytest
import torch
from torch.nn import functional as F

import fold_packages
import headgate
import headgate.torch.fold.functions
import headgate.torch.scaled_dot_product
import headgate.torch.transformers
import models
from headgate.torch import GatedDeltaNet, fold, hub_functions, linear_attention, use_everywhere
from headgate.torch.precision import IMPLEMENTATIONS

headgate.torch.transformers.register(functions=False)
BF16 = torch.bfloat16


@pytest.fixture
def precisions(monkeypatch):
    """The precision of each later call of gated_attention by one of the modules."""
    found = []
    for module in (headgate.torch.scaled_dot_product, headgate.torch.transformers, headgate.torch.fold.functions):
        inner = module.gated_attention
        monkeypatch.setattr(
            module,
            "gated_attention",
            lambda *a, _inner=inner, **k: found.append(k.get("precision", "exact")) or _inner(*a, **k),
        )
    return found


def assert_as_exact(y, exact):
    """Rounding weights to bf16 costs a few units in the last place of the largest elements."""
    torch.testing.assert_close(y.float(), exact.float(), rtol=0, atol=0.03 * exact.float().abs().max().item())


def test_use_everywhere_calls_in_bf16_have_the_newest_precision(precisions):
    q = torch.randn(2, 4, 70, 32)
    exact = F.scaled_dot_product_attention(q.to(BF16), q.to(BF16), q.to(BF16))
    with use_everywhere(precision="native16") as outer:
        assert_as_exact(F.scaled_dot_product_attention(q.to(BF16), q.to(BF16), q.to(BF16)), exact)
        F.scaled_dot_product_attention(q, q, q)
        F.scaled_dot_product_attention(q.half(), q.half(), q.half())
        with torch.autocast("cpu", BF16):
            F.scaled_dot_product_attention(q, q, q)
            F.scaled_dot_product_attention(q.double(), q.double(), q.double())
        with use_everywhere() as inner:
            F.scaled_dot_product_attention(q.to(BF16), q.to(BF16), q.to(BF16))
        F.scaled_dot_product_attention(q.to(BF16), q.to(BF16), q.to(BF16))
    assert precisions == ["native16", "exact", "exact", "native16", "exact", "exact", "native16"]
    assert (outer.precision, inner.precision) == ("native16", "exact") and not outer.declined


@pytest.mark.parametrize(("name", "precision"), IMPLEMENTATIONS.items())
def test_transformers_implementations_have_their_precision(name, precision, precisions):
    ids = models.tokens(2, 13)
    exact = models.model("qwen3", "headgate").to(BF16)(ids).logits
    precisions.clear()
    model = models.model("qwen3", name).to(BF16)
    logits = model(ids).logits
    logits.float().square().mean().backward()
    assert_as_exact(logits, exact)
    assert precisions and set(precisions) == {precision}
    precisions.clear()
    model.float()(ids)
    assert set(precisions) == {"exact"}


def test_fold_calls_in_bf16_have_the_precision(precisions, monkeypatch):
    q = torch.randn(5, 3, 70, 32, dtype=BF16)
    bias = torch.randn(3, 70, 70, dtype=BF16)
    assert_as_exact(fold.attention(q, q, q, [bias], precision="native16"), fold.attention(q, q, q, [bias]))
    fold.attention(q.float(), q.float(), q.float(), [bias.float()], precision="native16")
    assert precisions == ["native16", "exact", "exact"]
    precisions.clear()
    fold_packages.install(monkeypatch)
    served = fold_packages.MODULES["openfold3.core.model.primitives.attention"]["Attention"]().to(BF16)
    x = torch.randn(2, 6, 12, dtype=BF16)
    with fold.use_in("openfold3", precision="native16") as handle:
        y = served(x, x)
    assert handle.calls == 1 and precisions == ["native16"]
    assert_as_exact(y, served.plain(x, x, ()))


def rule_inputs(T=70):
    q, k, v = (torch.randn(2, T, 3, 32, dtype=BF16) for _ in range(3))
    return q, k, v, -torch.rand(2, T, 3, 1), torch.rand(2, T, 3, 1)


def test_linear_attention_in_native16_is_within_the_rounding_of_bf16():
    found = {}
    inputs = rule_inputs()
    for precision in ("exact", "native16"):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = linear_attention(*leaves, l2_norm=1e-6, layout="bthd", precision=precision)
        y.float().square().mean().backward()
        found[precision] = [y.detach(), *(leaf.grad for leaf in leaves)]
    for ours, exact in zip(found["native16"], found["exact"]):
        assert_as_exact(ours, exact)
    assert torch.equal(found["native16"][0], found["exact"][0]) == (headgate.native16_products() == "")
    with pytest.raises(ValueError, match="precision is native16 but q is f32, not bf16"):
        linear_attention(*(x.float() for x in inputs), layout="bthd", precision="native16")
    with pytest.raises(ValueError, match="precision: 'half' is none of exact, native16"):
        linear_attention(*inputs, layout="bthd", precision="half")


@pytest.fixture
def rule_precisions(monkeypatch):
    """The precision of each later call of linear_attention by a layer or a model of transformers."""
    found = []
    for module in (headgate.torch.delta_net, hub_functions):
        monkeypatch.setattr(
            module,
            "linear_attention",
            lambda *a, **k: found.append(k.get("precision", "exact")) or linear_attention(*a, **k),
        )
    return found


def test_transformers_rule_in_bf16_has_the_precision_of_register(rule_precisions):
    q, k, v, decay, beta = rule_inputs()
    rule = (q, k, v, decay.squeeze(-1), beta.squeeze(-1))
    exact, _ = hub_functions.chunk_rule(*rule)
    try:
        headgate.torch.transformers.register(linear_precision="native16")
        y, _ = hub_functions.chunk_rule(*rule)
        hub_functions.chunk_rule(*(x.float() for x in rule))
        headgate.torch.transformers.register()
        headgate.torch.transformers.register(functions=False)
        hub_functions.chunk_rule(*rule)
        headgate.torch.transformers.register(linear_precision="exact")
        hub_functions.chunk_rule(*rule)
        headgate.torch.transformers.register(linear_precision="native16")
    finally:
        headgate.torch.transformers.unregister()
    hub_functions.chunk_rule(*rule)
    with pytest.raises(ValueError, match="register: linear_precision='native16' has no effect with functions=False"):
        headgate.torch.transformers.register(functions=False, linear_precision="native16")
    assert rule_precisions == ["exact", "native16", "exact", "native16", "exact", "exact"]
    assert_as_exact(y, exact)


def test_gated_delta_net_in_bf16_has_its_precision(rule_precisions):
    layer = GatedDeltaNet(64, 2, linear_key_head_dim=16, precision="native16")
    h = torch.randn(2, 40, 64)
    layer(h)
    with torch.autocast("cpu", BF16):
        layer(h)
    layer.bfloat16()(h.to(BF16))
    assert rule_precisions == ["exact", "native16", "native16"]
    config = {"model_type": "qwen3_next", "hidden_size": 64, "linear_num_key_heads": 2, "precision": "bf16"}
    assert GatedDeltaNet.from_config(config).keys["precision"] == "exact"
    assert GatedDeltaNet.from_config(config, precision="native16").keys["precision"] == "native16"
    with pytest.raises(ValueError, match="precision: 'half' is none of exact, native16"):
        GatedDeltaNet(64, 2, linear_key_head_dim=16, precision="half")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda word: use_everywhere(precision=word), "use_everywhere"),
        (lambda word: fold.use_in("esmfold", precision=word), "fold.use_in"),
        (lambda word: fold.attention(*[torch.ones(1, 2, 4, dtype=BF16)] * 3, precision=word), "fold.attention"),
        (lambda word: headgate.torch.transformers.register(linear_precision=word), "register"),
    ],
)
def test_unknown_precision_is_refused_by_name(call, what):
    with pytest.raises(ValueError) as error:
        call("fast")
    assert str(error.value) == f"{what}: precision is 'fast' but must be 'exact' or 'native16'"
