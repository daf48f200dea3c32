# SPDX-License-Identifier: Apache-2.0
"""fold.use_in(): which calls of the packages Headgate computes, and what is left when it ends."""

import sys
import threading
import types

import pytest
import torch

import fold_packages
from fold_packages import MODULES, random
from headgate.torch import fold

N, C = 6, 12
BOLTZ, BOLTZ1, BOLTZ2, OPENFOLD3, PROTENIX = (
    next(iter(MODULES[name].values()))
    for name in (
        "boltz.model.layers.triangular_attention.primitives",
        "boltz.model.layers.attention",
        "boltz.model.layers.attentionv2",
        "openfold3.core.model.primitives.attention",
        "protenix.model.triangular.layers",
    )
)
ORIGINALS = {each: each.forward for each in (BOLTZ, BOLTZ1, BOLTZ2, OPENFOLD3, PROTENIX)}
ATTENTION = MODULES["protenix.model.modules.primitives"]["_attention"]


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    yield fold_packages.install(monkeypatch)
    for name in ("boltz", "openfold3", "protenix", "esmfold"):
        fold.use_in(name, False)
    monkeypatch.undo()
    assert all(each.forward is forward for each, forward in ORIGINALS.items())


def shown(*shape):
    """A mask of ones, where some are 0."""
    mask = (torch.rand(shape) < 0.7).float()
    mask[..., 0] = 1
    return mask


def triangle():
    """x, a bias of pairs and a bias of keys, as in triangle attention."""
    return random(2, N, N, C), random(2, 1, 3, N, N), (shown(2, N, 1, 1, N) - 1) * 1e9


def alphafold(kind, *, lead=True, **options):
    def case():
        x, pairs, mask = triangle()
        module = kind(gating=lead)
        return module, lambda: module(x, x, [mask, pairs], **options), [x, pairs]

    return case


def boltz():
    x, pairs, mask = triangle()
    module = BOLTZ()
    return module, lambda: module(x, x, pairs, mask, mask == 0), [x, pairs]


def pair_bias(kind, sequences, multiplicity, cached=False):
    def case():
        module, s, z = kind(), random(sequences * multiplicity, N, C), random(sequences, N, N, 5)
        k_in, mask = random(sequences * multiplicity, N, C), shown(sequences * multiplicity, N)

        def call():
            given = {"k_in": k_in} if kind is BOLTZ2 else {"model_cache": {} if cached else None}
            return module(s, z, mask, multiplicity=multiplicity, **given)

        return module, call, [s, z]

    return case


def windows():
    s, z, keys = random(2, N, C), random(2, N, N + 2, 5), lambda x: torch.cat([x, x[:, :2]], 1)
    module, mask = BOLTZ1(), shown(2, N)
    return module, lambda: module(s, z, mask, to_keys=keys, model_cache={}), [s, z]


def protenix(*lead, bias):
    def case():
        q, k, v = (random(*lead, n, 4) for n in (N, N + 1, N + 1))
        added = random(*bias, N, N + 1) if bias is not None else None
        held = sys.modules["protenix.model.modules.local"]
        call = lambda: held.held(q, k, v, added, inplace_safe=True)  # noqa: E731
        return torch.nn.Module(), call, [q, k, v, *([] if added is None else [added])]

    return case


def global_attention():
    """Heads of queries on one head of keys."""
    q, k, v, mask = random(2, N, 3, 4), random(2, N, 5, 4), random(2, N, 5, 4), (shown(2, N, 1, 5) - 1) * 1e9
    module = sys.modules["openfold3.core.model.primitives.attention"]
    return torch.nn.Module(), lambda: module._attention(q, k, v, [mask]), [q, k, v]


CASES = {
    "boltz triangle": ("boltz", boltz),
    "boltz 1": ("boltz", pair_bias(BOLTZ1, 2, 1)),
    "boltz 1, samples of one structure": ("boltz", pair_bias(BOLTZ1, 1, 3, cached=True)),
    "boltz 1, windows": ("boltz", windows),
    "boltz 2": ("boltz", pair_bias(BOLTZ2, 2, 1)),
    "boltz 2, samples of structures": ("boltz", pair_bias(BOLTZ2, 2, 3)),
    "openfold3": ("openfold3", alphafold(OPENFOLD3)),
    "openfold3 without a gate": ("openfold3", alphafold(OPENFOLD3, lead=False)),
    "openfold3, low memory": ("openfold3", alphafold(OPENFOLD3, use_lma=True, lma_q_chunk_size=2)),
    "openfold3, high precision": ("openfold3", alphafold(OPENFOLD3, use_high_precision=True)),
    "openfold3, global": ("openfold3", global_attention),
    "protenix triangle": ("protenix", alphafold(PROTENIX)),
    "protenix": ("protenix", protenix(2, 3, bias=(1, 3))),
    "protenix without a bias": ("protenix", protenix(2, 3, bias=None)),
    "protenix, windows": ("protenix", protenix(2, 3, 4, bias=(1, 3, 4))),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_the_package(name):
    package, case = CASES[name]
    module, call, inputs = case()
    learned = [*inputs, *module.parameters()]
    expected = call()
    dy = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, learned, dy, allow_unused=True)
    with fold.use_in(package) as served:
        found = call()
    assert (served.calls, served.declined) == (1, {})
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
    for a, b in zip(torch.autograd.grad(found, learned, dy, allow_unused=True), gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=5e-5, atol=5e-5)


class Derived(OPENFOLD3):
    pass


def declined(kind, **options):
    x = random(2, N, N, C)
    return kind(), lambda module: module(x, x, **options)


def hooked():
    module, call = declined(OPENFOLD3)
    module.sigmoid.register_forward_hook(lambda *_: None)
    return module, call


def hooked_backward():
    module, call = declined(OPENFOLD3)
    module.sigmoid.register_full_backward_pre_hook(lambda *_: None)
    return module, call


def other_gate():
    module, call = declined(OPENFOLD3)
    module.sigmoid = torch.nn.Hardsigmoid()
    return module, call


LEFT = {
    "kernel of boltz": (
        "boltz",
        lambda: (BOLTZ(), lambda m: m(torch.ones(N, C), torch.ones(N, C), torch.ones(3, N, N), torch.ones(N), 0, True)),
        "argument 'use_kernels' is True",
    ),
    "kernel of openfold3": (
        "openfold3",
        lambda: declined(OPENFOLD3, use_deepspeed_evo_attention=True),
        "argument 'use_deepspeed_evo_attention' is True",
    ),
    "kernel of protenix": (
        "protenix",
        lambda: declined(PROTENIX, triangle_attention="cuequivariance"),
        "argument 'triangle_attention' is 'cuequivariance'",
    ),
    "subclass of a module": ("openfold3", lambda: declined(Derived), "a subclass of OpenFold3Attention"),
    "hook of the gate": ("openfold3", hooked, "hooks of the gate's sigmoid, which Headgate does not call"),
    "hook of the gate's gradient": (
        "openfold3",
        hooked_backward,
        "hooks of the gate's sigmoid, which Headgate does not call",
    ),
    "another gate": ("openfold3", other_gate, "a gate with Hardsigmoid in place of Sigmoid"),
    "bias that does not broadcast": (
        "openfold3",
        lambda: (OPENFOLD3(), lambda m: m(torch.ones(1, N, C), torch.ones(1, N, C), [torch.ones(4, 3, N, N)])),
        r"fold.attention: biases[0] has shape (4,3,6,6) but must broadcast to (1, 3, 6, 6)",
    ),
    "other device": (
        "openfold3",
        lambda: (OPENFOLD3().to("meta"), lambda m: m(*[torch.ones(N, C, device="meta")] * 2)),
        "a tensor on meta",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_calls_are_left_to_the_package(name):
    package, case, reason = LEFT[name]
    module, call = case()
    with fold.use_in(package) as served:
        found = call(module)
    expected = call(module)
    assert (served.calls, served.declined) == (0, {reason: 1})
    assert found.device == expected.device and (found.is_meta or torch.equal(found, expected))


@pytest.mark.parametrize("given", [((), {}), ((1, 2, 3, 4, 5), {}), ((1,), {"q_x": 2}), ((1, 2), {"other": 3})])
def test_calls_that_do_not_fit_raise_the_package_s_error(given):
    module = PROTENIX()
    with fold.use_in("protenix") as served, pytest.raises(TypeError, match=r"forward\(\)"):
        module(*given[0], **given[1])
    assert served.declined == {"arguments that do not fit the function": 1}


def test_modules_that_may_not_be_imported_are_passed_by(monkeypatch):
    monkeypatch.setitem(sys.modules, "protenix.blocked", None)
    with fold.use_in("protenix"):
        assert PROTENIX.forward is not ORIGINALS[PROTENIX]
    assert PROTENIX.forward is ORIGINALS[PROTENIX]


def test_switch_is_on_until_off_and_nests():
    x = random(2, N, C)
    module = OPENFOLD3()
    first, second = fold.use_in("openfold3"), fold.use_in("openfold3")
    module(x, x)
    first.off()
    module(x, x)
    assert OPENFOLD3.forward is not ORIGINALS[OPENFOLD3] and BOLTZ.forward is ORIGINALS[BOLTZ]
    second.off()
    assert OPENFOLD3.forward is ORIGINALS[OPENFOLD3]
    assert (first.calls, second.calls) == (1, 2)
    assert repr(second) == "<fold.use_in('openfold3'): 2 calls computed, 0 left to openfold3>"
    with pytest.raises(ZeroDivisionError), fold.use_in("openfold3"):
        raise ZeroDivisionError
    assert OPENFOLD3.forward is ORIGINALS[OPENFOLD3]
    third = fold.use_in("openfold3")
    assert fold.use_in("openfold3", False) is None
    module(x, x)
    assert third.calls == 0


def test_threads_share_the_switch():
    x, module = random(2, N, C), OPENFOLD3()
    with fold.use_in("openfold3") as served:
        threads = [threading.Thread(target=module, args=(x, x)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert served.calls == 4


def test_function_is_replaced_wherever_a_module_holds_it(packages, monkeypatch):
    first, held = packages["protenix.model.modules.primitives"], packages["protenix.model.modules.local"]
    late = types.ModuleType("protenix.late")
    with fold.use_in("protenix"):
        assert first._attention is held.held is not ATTENTION
        late.taken = first._attention
        monkeypatch.setitem(sys.modules, "protenix.late", late)
    assert first._attention is held.held is late.taken is ATTENTION


def test_function_that_other_code_has_installed_stays(monkeypatch):
    with fold.use_in("openfold3"):
        served = OPENFOLD3.forward
        monkeypatch.setattr(OPENFOLD3, "forward", lambda self, *given: served(self, *given))
    assert OPENFOLD3.forward is not served
    x, module = random(2, N, C), OPENFOLD3()
    torch.testing.assert_close(module(x, x), module.plain(x, x, []))
    monkeypatch.undo()
    OPENFOLD3.forward = ORIGINALS[OPENFOLD3]


def another(self, s, z, mask, keys, multiplicity=1):
    return s


def demanding(self, s, z, mask, k_in, new, multiplicity=1):
    return s


@pytest.mark.parametrize("forward", [another, demanding])
def test_other_version_is_refused_and_nothing_is_replaced(monkeypatch, forward):
    monkeypatch.setattr(BOLTZ2, "forward", forward)
    with pytest.raises(
        RuntimeError, match="^fold.use_in: boltz.model.layers.attentionv2:AttentionPairBias.forward takes "
    ):
        fold.use_in("boltz")
    assert BOLTZ.forward is ORIGINALS[BOLTZ]
    monkeypatch.undo()
    with pytest.raises(RuntimeError) as error:
        fold_packages.install(monkeypatch)
        monkeypatch.setattr(BOLTZ2, "forward", another)
        fold.use_in("boltz")
    assert "(self, s, z, mask, keys, multiplicity) but must take (self, s, z, mask, k_in, multiplicity)" in str(
        error.value
    )
    assert "boltz 2.2.1 is supported, " in str(error.value) and "\n" not in str(error.value)


def test_new_argument_is_left_to_the_package_where_it_is_used(monkeypatch):
    def forward(self, q_x, kv_x, biases=None, triangle_attention="torch", softcap=0.0):
        return self.plain(q_x, kv_x, biases or []) + softcap

    monkeypatch.setattr(PROTENIX, "forward", forward)
    x, module = random(2, N, C), PROTENIX()
    with fold.use_in("protenix") as served:
        module(x, x, [])
        assert torch.equal(module(x, x, softcap=2.0), module.plain(x, x, []) + 2)
    assert served.calls == 1 and served.declined == {"argument 'softcap' is 2.0": 1}


def test_package_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ValueError, match="^fold.use_in: package is 'chai' but must be one of 'boltz', 'openfold3', "):
        fold.use_in("chai")
    monkeypatch.setitem(sys.modules, "boltz", None)
    with pytest.raises(ImportError, match=r"^fold.use_in: boltz cannot be imported \(.*\): pip install boltz$"):
        fold.use_in("boltz")


def test_function_that_is_not_there_is_named(monkeypatch, packages):
    monkeypatch.delattr(packages["protenix.model.modules.primitives"], "_attention")
    with pytest.raises(
        ImportError, match=r"protenix.model.modules.primitives:_attention cannot be imported .* 2.0.0 is"
    ):
        fold.use_in("protenix")
    assert PROTENIX.forward is ORIGINALS[PROTENIX]


def test_compiled_module_is_computed_by_headgate():
    x, module = random(2, N, C), OPENFOLD3()
    expected = module(x, x)
    with fold.use_in("openfold3"):
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, x), expected, rtol=2e-5, atol=2e-5)
        assert torch.autograd.grad(compiled(x, x).sum(), x)[0].shape == x.shape


@pytest.fixture(scope="module")
def folding():
    """A small EsmForProteinFolding."""
    from transformers import EsmForProteinFolding
    from transformers.models.esm.configuration_esm import EsmConfig

    structure = {"sequence_dim": 24, "pairwise_dim": 16, "ipa_dim": 4, "resnet_dim": 16, "num_blocks": 1}
    trunk = {"num_blocks": 2, "sequence_state_dim": 32, "pairwise_state_dim": 16, "sequence_head_width": 8}
    trunk |= {"pairwise_head_width": 8, "structure_module": structure | {"num_heads_ipa": 2}}
    config = EsmConfig(
        is_folding_model=True,
        vocab_size=33,
        mask_token_id=32,
        pad_token_id=1,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        position_embedding_type="rotary",
        esmfold_config={"trunk": trunk, "fp16_esm": False},
    )
    torch.manual_seed(0)
    model = EsmForProteinFolding(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def esmfold(folding):
    return folding.trunk.blocks[0]


def test_esmfold_folds_as_before(folding):
    residues, mask = torch.randint(0, 20, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    with torch.no_grad():
        expected = folding(residues, attention_mask=mask, num_recycles=1)
        with fold.use_in("esmfold") as served:
            found = folding(residues, attention_mask=mask, num_recycles=1)
    assert served.calls == 3 * 2 * 2 and not served.declined  # three of each block, in two cycles
    for name in ("s_z", "s_s", "plddt", "positions"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("chunk", [None, 4])
def test_esmfold_block_has_its_results_and_gradients(esmfold, chunk):
    s, z = random(1, N, 32), random(1, N, N, 16)
    mask = torch.ones(1, N)
    mask[:, -1] = 0
    learned = [s, z, *esmfold.parameters()]
    shown = mask[0]

    def loss():
        sequence, pairs = esmfold(s, z, mask=mask, chunk_size=chunk)
        return (sequence[0] * shown[:, None]).square().sum() + (
            pairs[0] * (shown * shown[:, None])[..., None]
        ).square().sum()

    expected = loss()
    with fold.use_in("esmfold") as served:
        found = loss()
    assert served.calls >= 3 and not served.declined
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, learned), torch.autograd.grad(expected, learned), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_esmfold_weights_are_not_computed(esmfold):
    with fold.use_in("esmfold"):
        _, weights = esmfold.seq_attention(random(1, N, 32))
    with pytest.raises(AttributeError, match=r"^fold.use_in\('esmfold'\) computes no attention weights \('mean'\)"):
        weights.mean()
