# SPDX-License-Identifier: Apache-2.0
"""Gated DeltaNet layer: projections, short convolution, gated delta rule, gated norm.

Parameter names and row orders match the checkpoints of Qwen3-Next, Qwen3.5, OLMo-Hybrid or Kimi-Linear. Letters:

- B batch, N sequences, T tokens, C channels of the layer
- Hk heads of q and k, with D features
- Hv heads of v, with Dv features
- K taps
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import headgate

from .calls import refuse_transforms
from .checks import (
    is_whole,
    require_bool,
    require_input,
    require_number,
    require_sequences,
    require_tensors,
    require_whole,
    require_word,
)
from .delta_convolution import convolve, require_causal
from .errors import in_words_of
from .gated_norm import gated_norm
from .linear_attention import L2_NORM_EPS, linear_attention
from .precision import Precision, precision_of
from .transforms import transforms_are_active

if TYPE_CHECKING:
    from headgate._arguments import GateFunction

_RULE: dict[str, Any] = {"l2_norm": L2_NORM_EPS, "layout": "bthd"}


class _Pass(NamedTuple):
    """Holds the inputs of a forward pass over T tokens. The states after any smaller number of tokens can be computed
    from them.
    """

    T: int
    columns: list[Tensor]
    """(B,K−1+T,channels) for each convolved part: its state before the pass, then its inputs."""
    rule: tuple[Tensor, ...]
    """The inputs of the delta rule."""
    state: Tensor | None
    """State before the pass, (B,Hv,D,Dv)."""
    options: dict[str, Any]
    """The options of linear_attention."""

    def first_tokens(self, T: int) -> "_Pass":
        """Returns this pass shortened to its first T tokens."""
        rows = self.columns[0].shape[1] - self.T
        columns = [x[:, : rows + T] for x in self.columns]
        return _Pass(T, columns, tuple(x[:, :T] for x in self.rule), self.state, self.options)

    def states(self) -> tuple[Tensor | None, list[Tensor | None]]:
        """Returns the recurrent state and the convolution's states after the pass."""
        state = self.state
        if self.T > 0:
            state = linear_attention(*self.rule, state=self.state, return_state=True, **self.options)[1]
        return state, [x[:, self.T :].clone() for x in self.columns]


class DeltaNetCache:
    """Cache of one layer for inference without gradients.

    It holds the last K − 1 inputs of the convolution and the state of each head. Without `keep`, its size does not
    depend on the number of tokens.

    Args:
        keep: how many of the last tokens truncate() can drop. For each pass that holds some of these tokens, the cache
            stores the state before the pass and the inputs of the convolution and the delta rule. If truncate() drops
            d tokens, the next call can drop keep - d, and one more for each token read in between.
    """

    def __init__(self, keep: int = 0) -> None:
        if not is_whole(keep) or keep < 0:
            raise ValueError(f"DeltaNetCache: keep is {keep!r} but must be a whole number, at least 0")
        self.keep = keep
        self.convolution: list[Tensor | None] = []
        """The last K − 1 inputs of each convolution, (N,K−1,channels). There is one for q, k and v together, or one for
        each."""
        self.state: Tensor | None = None
        """State of each head, (N,Hv,D,Dv)."""
        self.length = 0
        """Number of tokens so far. For a packed batch, the total over its sequences."""
        self._passes: list[_Pass] = []

    @torch.no_grad()
    def truncate(self, length: int) -> None:
        """Drops all tokens except the first `length`. A `length` of 0 is always possible.

        The states are then bitwise identical to those of passes without the dropped tokens. Raises ValueError, and
        changes nothing, if a token to drop is in a pass that the cache does not keep (see `keep`).
        """
        kept = sum(each.T for each in self._passes)
        least = self.length - kept
        if not is_whole(length) or not (length == 0 or least <= length <= self.length):
            raise ValueError(
                f"cache: cannot be cut to {length!r} tokens, it holds {self.length} and keeps the last {kept} for that: "
                "keep of DeltaNetCache says how many, packed batches are not kept"
            )
        if length == self.length:
            return
        if length == 0:
            self._passes, self.state, self.convolution, self.length = [], None, [], 0
            return
        passes, end = list(self._passes), self.length
        while end - passes[-1].T > length:
            end -= passes.pop().T
        last = passes.pop()
        last = last.first_tokens(length - end + last.T)
        state, convolution = last.states()
        self._passes = [*passes, last] if last.T > 0 else passes
        self.state, self.convolution, self.length = state, convolution, length

    def _add(self, T: int, state: Tensor, convolution: list[Tensor | None], read: _Pass | None) -> None:
        """Records a completed pass: its T tokens, its final states, and its inputs `read` for truncate().

        If `read` is None, truncate() can drop neither the tokens of this pass nor earlier tokens.
        """
        self._passes = [*self._passes, read] if read is not None else []
        while sum(each.T for each in self._passes[1:]) >= max(self.keep, 1):
            del self._passes[0]
        self.state, self.convolution = state, convolution
        self.length += T


class Projected(NamedTuple):
    """Holds the projections of the layer's input h."""

    mixed: list[Tensor]
    """Inputs of the convolution, (B,T,channels). Joined along the channels, they hold q, then k, then v."""
    z: Tensor
    """Logits of the output gate, (B,T,Hv,Dv)."""
    b: Tensor
    """Logits of β, (B,T,Hv)."""
    a: Tensor
    """Logits of the decay: (B,T,Hv), or (B,T,Hv,D) if each feature has its own decay."""


class _Layout:
    """Describes the names and order of the parameters in a model's files.

    - output: name of the output projection
    - norm: name of the norm
    - gate_fn: function of the output gate
    - decay_of_feature: whether each feature has its own decay
    - inner_module: prefix that transformers adds to the names of some parameters
    """

    output: str
    norm: str
    gate_fn: "GateFunction"
    decay_of_feature = False
    inner_module = ""

    @staticmethod
    def make(layer: "GatedDeltaNet") -> None:
        """Creates the layer's projections."""
        raise NotImplementedError

    @staticmethod
    def project(layer: "GatedDeltaNet", h: Tensor) -> Projected:
        """Projects the layer's input h."""
        raise NotImplementedError


class _Qwen35(_Layout):
    """Layout of Qwen3.5. Its matrices are in_proj_qkv for q, k and v, in_proj_z for the output gate, in_proj_b for β,
    and in_proj_a for the decay.
    """

    output, norm, gate_fn = "out_proj", "norm", "silu"

    @staticmethod
    def make(layer: "GatedDeltaNet") -> None:
        C = layer.keys["hidden_size"]
        layer.in_proj_qkv = _matrix(C, sum(layer.widths))
        layer.in_proj_z = _matrix(C, layer.widths[2])
        layer.in_proj_b = _matrix(C, layer.Hv)
        layer.in_proj_a = _matrix(C, layer.Hv)

    @staticmethod
    def project(layer: "GatedDeltaNet", h: Tensor) -> Projected:
        z = layer.in_proj_z(h).unflatten(-1, (layer.Hv, layer.Dv))
        return Projected([layer.in_proj_qkv(h)], z, layer.in_proj_b(h), layer.in_proj_a(h))


class _Qwen3Next(_Qwen35):
    """Layout of Qwen3-Next. With R = Hv / Hk, each key head has these rows:

    - in_proj_qkvz: D of q, D of k, R·Dv of v, R·Dv of z
    - in_proj_ba: R of b, R of a
    """

    @staticmethod
    def make(layer: "GatedDeltaNet") -> None:
        C = layer.keys["hidden_size"]
        layer.in_proj_qkvz = _matrix(C, sum(layer.widths) + layer.widths[2])
        layer.in_proj_ba = _matrix(C, 2 * layer.Hv)

    @staticmethod
    def project(layer: "GatedDeltaNet", h: Tensor) -> Projected:
        Hk, R = layer.Hk, layer.Hv // layer.Hk
        rows = (layer.D, layer.D, R * layer.Dv, R * layer.Dv)
        *mixed, z = layer.in_proj_qkvz(h).unflatten(-1, (Hk, -1)).split(rows, dim=-1)
        b, a = layer.in_proj_ba(h).unflatten(-1, (Hk, -1)).split((R, R), dim=-1)
        z = z.reshape(*h.shape[:-1], layer.Hv, layer.Dv)
        return Projected([x.flatten(-2) for x in mixed], z, b.flatten(-2), a.flatten(-2))


class _OlmoHybrid(_Layout):
    """Layout of OLMo-Hybrid. Its matrices are q_proj, k_proj, v_proj, a_proj for the decay, b_proj for β, and g_proj
    for the output gate.
    """

    output, norm, gate_fn = "o_proj", "o_norm", "silu"

    @staticmethod
    def make(layer: "GatedDeltaNet") -> None:
        C = layer.keys["hidden_size"]
        layer.q_proj, layer.k_proj, layer.v_proj = (_matrix(C, width) for width in layer.widths)
        layer.a_proj, layer.b_proj = _matrix(C, layer.Hv), _matrix(C, layer.Hv)
        layer.g_proj = _matrix(C, layer.widths[2])

    @staticmethod
    def project(layer: "GatedDeltaNet", h: Tensor) -> Projected:
        mixed = [layer.q_proj(h), layer.k_proj(h), layer.v_proj(h)]
        z = layer.g_proj(h).unflatten(-1, (layer.Hv, layer.Dv))
        return Projected(mixed, z, layer.b_proj(h), layer.a_proj(h))


class _KimiLinear(_Layout):
    """Layout of Kimi-Linear. Its matrices are q_proj, k_proj, v_proj, b_proj for β, and two low-rank projections.

    The decay logits, one for each feature, are f_b_proj(f_a_proj(h)). The output gate's logits are
    g_b_proj(g_a_proj(h)).
    """

    output, norm, gate_fn = "o_proj", "o_norm", "sigmoid"
    decay_of_feature = True
    inner_module = "forget_gate."  # transformers adds this prefix to names; files lack it

    @staticmethod
    def make(layer: "GatedDeltaNet") -> None:
        C = layer.keys["hidden_size"]
        layer.q_proj, layer.k_proj, layer.v_proj = (_matrix(C, width) for width in layer.widths)
        layer.b_proj = _matrix(C, layer.Hv)
        layer.f_a_proj, layer.f_b_proj = _matrix(C, layer.D), _matrix(layer.D, layer.Hv * layer.D)
        layer.g_a_proj, layer.g_b_proj = _matrix(C, layer.Dv), _matrix(layer.Dv, layer.widths[2])

    @staticmethod
    def project(layer: "GatedDeltaNet", h: Tensor) -> Projected:
        mixed = [layer.q_proj(h), layer.k_proj(h), layer.v_proj(h)]
        z = layer.g_b_proj(layer.g_a_proj(h)).unflatten(-1, (layer.Hv, layer.Dv))
        a = layer.f_b_proj(layer.f_a_proj(h)).unflatten(-1, (layer.Hv, layer.D))
        return Projected(mixed, z, layer.b_proj(h), a)


WeightLayout = Literal["qwen3_5", "qwen3_next", "olmo_hybrid", "kimi_linear"]
WEIGHT_LAYOUTS: dict[str, type[_Layout]] = {
    "qwen3_5": _Qwen35,
    "qwen3_next": _Qwen3Next,
    "olmo_hybrid": _OlmoHybrid,
    "kimi_linear": _KimiLinear,
}


def _matrix(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class GatedNorm(nn.Module):
    """Computes x / rms(x) · weight · g(gate) over the last dimension, with headgate.torch.gated_norm."""

    def __init__(self, features: int, eps: float, gate_fn: "GateFunction"):
        super().__init__()
        self.eps, self.gate_fn = eps, gate_fn
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return gated_norm(x, self.weight, gate, gate_fn=self.gate_fn, eps=self.eps, layout="bthd")


class GatedDeltaNet(nn.Module):
    """Causal Gated DeltaNet layer: maps h (B,T,C), the normalized layer input, to (B,T,C).

    The steps, in order:

      1. projections
      2. a causal convolution of K taps and SiLU over the channels of q, k and v
      3. the gated delta rule on L2-normalized q and k, with the decay −exp(A_log)·softplus(a + dt_bias) and with
         β = σ(b), or β = 2σ(b) with `linear_allow_neg_eigval`
      4. the norm of each head, times `weight`, times silu(z) or σ(z)
      5. the output projection

    Value head h reads key head ⌊h / (Hv/Hk)⌋.

    load_state_dict also accepts a convolution in three parts, `q_conv1d`, `k_conv1d` and `v_conv1d`. It also accepts
    the names that transformers uses for Kimi-Linear.

    Args:
        hidden_size: C, the features of a token.
        linear_num_key_heads: Hk, the heads of queries and keys.
        linear_num_value_heads: Hv, the heads of values and states. It must be a multiple of Hk. None means Hk.
        linear_key_head_dim: D, the features of a head of queries and keys.
        linear_value_head_dim: Dv, the features of a head of values. None means D.
        weight_layout: the model that defines parameter names and row orders. "kimi_linear" has a decay for each feature
            and the gate σ(z). The other layouts have one decay per head and the gate silu(z).
        linear_conv_kernel_dim: K, the taps of the convolution.
        linear_allow_neg_eigval: whether β is 2σ(b). The state's transition may then have negative eigenvalues.
        rms_norm_eps: added to the mean square in the norm.
        initializer_range: the standard deviation of the initial matrices.
        precision: linear_attention's argument `precision` for calls in bfloat16. All other calls are exact.
    """

    @in_words_of("GatedDeltaNet", {})
    def __init__(
        self,
        hidden_size: int,
        linear_num_key_heads: int,
        linear_num_value_heads: int | None = None,
        linear_key_head_dim: int = 128,
        linear_value_head_dim: int | None = None,
        *,
        weight_layout: WeightLayout = "qwen3_5",
        linear_conv_kernel_dim: int = 4,
        linear_allow_neg_eigval: bool = False,
        rms_norm_eps: float = 1e-6,
        initializer_range: float = 0.02,
        precision: Precision = "exact",
    ):
        keys = {name: value for name, value in locals().items() if name in _PARAMETERS}
        super().__init__()
        for name, words in (("weight_layout", (*WEIGHT_LAYOUTS,)), ("precision", get_args(Precision))):
            require_word(name, keys[name], words)
        self.keys, self._layout = keys, WEIGHT_LAYOUTS[weight_layout]
        self.Hk, self.D = linear_num_key_heads, linear_key_head_dim
        self.Hv = self.Hk if linear_num_value_heads is None else linear_num_value_heads
        self.Dv = self.D if linear_value_head_dim is None else linear_value_head_dim
        self._check_sizes()
        for name in ("rms_norm_eps", "initializer_range"):
            require_number(name, keys[name], 0)
        require_bool("GatedDeltaNet", "linear_allow_neg_eigval", linear_allow_neg_eigval)
        self.widths = (self.Hk * self.D, self.Hk * self.D, self.Hv * self.Dv)
        channels, K = sum(self.widths), linear_conv_kernel_dim
        self._layout.make(self)
        self.conv1d = nn.Conv1d(channels, channels, K, groups=channels, padding=K - 1, bias=False)
        features = self.Hv * self.D if self._layout.decay_of_feature else self.Hv
        self.A_log = nn.Parameter(torch.empty((1, 1, self.Hv, 1) if self._layout.decay_of_feature else self.Hv))
        self.dt_bias = nn.Parameter(torch.empty(features))
        setattr(self, self._layout.norm, GatedNorm(self.Dv, rms_norm_eps, self._layout.gate_fn))
        setattr(self, self._layout.output, _matrix(self.widths[2], hidden_size))
        self.register_load_state_dict_pre_hook(_in_own_names)
        self.reset_parameters()

    def _check_sizes(self) -> None:
        for name, value, least, most in (
            ("hidden_size", self.keys["hidden_size"], 1, None),
            ("linear_num_key_heads", self.Hk, 1, None),
            ("linear_num_value_heads", self.Hv, 1, None),
            ("linear_key_head_dim", self.D, 1, 256),
            ("linear_value_head_dim", self.Dv, 1, 256),
            ("linear_conv_kernel_dim", self.keys["linear_conv_kernel_dim"], 2, 8),
        ):
            require_whole(name, value)
            if value < least or (most is not None and value > most):
                limits = f"at least {least}" if most is None else f"from {least} to {most}"
                raise ValueError(f"{name}: is {value} but must be {limits}")
        if self.Hv % self.Hk != 0:
            raise ValueError(f"linear_num_value_heads: {self.Hv} is not a multiple of linear_num_key_heads, {self.Hk}")

    def reset_parameters(self) -> None:
        """Initializes the parameters.

        - Matrices are normal, A is uniform in (0.01, 16), and the norm's weight is 1.
        - dt_bias is chosen such that softplus(dt_bias) is log-uniform in (0.001, 0.1).

        The half-lives of the heads thus range from less than one token to tens of thousands of tokens.
        """
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.keys["initializer_range"])
            elif isinstance(module, GatedNorm):
                nn.init.ones_(module.weight)
        self.conv1d.reset_parameters()
        with torch.no_grad():
            self.A_log.uniform_(0.01, 16.0).log_()
            step = self.dt_bias.uniform_(math.log(0.001), math.log(0.1)).exp_()
            self.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))

    @classmethod
    def from_config(cls, config: "Mapping[str, Any] | Any", precision: Precision = "exact") -> "GatedDeltaNet":
        """Creates a layer from a model's config: the dict of a config.json, or a config object of transformers.

        The key weight_layout selects the layout of the parameters. If it is missing, the key model_type selects the
        layout.
        """
        keys = dict(config) if isinstance(config, Mapping) else config.to_dict()
        if isinstance(keys.get("text_config"), Mapping):
            keys = {**keys, **keys["text_config"]}
        kind = str(keys.get("weight_layout", keys.get("model_type", "")))
        layout = next((name for name in WEIGHT_LAYOUTS if kind.startswith(name)), kind)
        # Skips a key `precision`: in a config it describes the model and is not linear_attention's argument.
        given = {name: keys[name] for name in _PARAMETERS if keys.get(name) is not None and name != "precision"}
        if layout == "olmo_hybrid":
            given = {**_olmo_sizes(keys), **given, "rms_norm_eps": 1e-5}  # the model ignores its config's eps
        if layout == "kimi_linear":
            given |= _kimi_sizes(keys)
        missing = [name for name in ("hidden_size", "linear_num_key_heads") if name not in given]
        if missing:
            raise ValueError(f"from_config: the config has no {missing[0]}")
        return cls(**{**given, "weight_layout": layout, "precision": precision})

    def extra_repr(self) -> str:
        sizes = f"heads={self.Hk}x{self.D}/{self.Hv}x{self.Dv}"
        return f"{self.keys['weight_layout']}, hidden_size={self.keys['hidden_size']}, {sizes}"

    def _decay_and_beta(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the decay g (B,T,Hv,1|D) in f32 or better, and β (B,T,Hv,1)."""
        wide = torch.promote_types(a.dtype, torch.float32)
        rate = self.A_log.to(wide).exp()
        a, bias = (
            (a, self.dt_bias.unflatten(0, (self.Hv, self.D)))
            if a.dim() == 4
            else (a.unsqueeze(-1), self.dt_bias.unsqueeze(-1))
        )
        decay = -rate.view(self.Hv, 1) * F.softplus(a.to(wide) + bias.to(wide))
        beta = b.sigmoid()
        return decay, (2.0 * beta if self.keys["linear_allow_neg_eigval"] else beta).unsqueeze(-1)

    def _convolved(
        self, mixed: list[Tensor], cache: DeltaNetCache | None, cu_seqlens: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Applies the convolution to `mixed`. Returns a list of q and k (B,T,Hk,D) and v (B,T,Hv,Dv), and a list of the
        new state of each part's convolution.
        """
        before = cache.convolution if cache is not None else []
        parts, states = convolve(self.conv1d, self.keys["linear_conv_kernel_dim"], mixed, before, cu_seqlens)
        q, k, v = parts[0].split(self.widths, dim=-1) if len(parts) == 1 else parts
        return [x.unflatten(-1, (heads, -1)) for x, heads in ((q, self.Hk), (k, self.Hk), (v, self.Hv))], states

    @in_words_of("GatedDeltaNet", {})
    def forward(
        self,
        h: Tensor,
        *,
        cache: DeltaNetCache | None = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Returns the layer's output (B,T,C).

        `cache` holds the state of earlier tokens, and the call updates it. Calls with a cache must not need gradients.
        `mask` (B,T) is false at padding, whose input is replaced by 0. With a cache, padding must come before the
        tokens, since the state also decays at padding. `cu_seqlens` (N+1) gives the first token of each sequence of a
        packed batch (1,T,C). Each sequence has a separate state.
        """
        read, z, convolution, mixed = self._inputs(h, mask, cu_seqlens, cache)
        given = {"cu_seqlens": cu_seqlens, **self._rule(read[0])}
        if cache is None:
            y = linear_attention(*read, **given)
        else:
            y, state = linear_attention(*read, state=cache.state, return_state=True, **given)
        y = getattr(self, self._layout.norm)(y, z)
        out = getattr(self, self._layout.output)(y.flatten(-2))
        if cache is not None:  # a failed call leaves the cache unchanged
            cache._add(h.shape[1], state, convolution, self._pass_of(cache, read, mixed, cu_seqlens))
        return out

    def _rule(self, q: Tensor) -> dict[str, Any]:
        """Returns the options of linear_attention for queries q."""
        return {**_RULE, **precision_of(q, self.keys.get("precision", "exact"))}  # older pickles lack "precision"

    def _pass_of(
        self, cache: DeltaNetCache, read: tuple[Tensor, ...], mixed: list[Tensor], cu_seqlens: Tensor | None
    ) -> _Pass | None:
        """Returns the inputs of a pass for truncate(). Returns None if cache.keep is 0 or the batch is packed."""
        if cache.keep == 0 or cu_seqlens is not None:
            return None
        rows, columns = self.keys["linear_conv_kernel_dim"] - 1, []
        for x, before in zip(mixed, cache.convolution or [None] * len(mixed)):
            before = x.new_zeros(x.shape[0], rows, x.shape[2]) if before is None else before
            columns.append(torch.cat((before, x.to(before.dtype)), dim=1))
        return _Pass(mixed[0].shape[1], columns, read, cache.state, self._rule(read[0]))

    @torch.no_grad()
    @in_words_of("GatedDeltaNet", {})
    def statistics(
        self,
        h: Tensor,
        outputs: Sequence[str] = ("mean_first_share", "mean_reach", "half_life", "effective_rank"),
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> headgate.LinearAttentionStatistics:
        """Returns statistics of the layer's implicit attention weights, without storing the T×T weights. Has no
        gradients.

        The arguments are those of forward(). `outputs` names fields of headgate.LinearAttentionStatistics. Each is a
        tensor with one number per query (B,Hv,T) or per head (N,Hv).
        """
        read, *_ = self._inputs(h, mask, cu_seqlens, None)
        given = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
        return headgate.linear_attention_statistics(
            *read, l2_norm=L2_NORM_EPS, layout="bthd", outputs=list(outputs), **given
        )

    def _inputs(
        self, h: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None, cache: DeltaNetCache | None
    ) -> tuple[tuple[Tensor, ...], Tensor, list[Tensor], list[Tensor]]:
        """Returns four results:

        - the inputs of the delta rule: q, k, v, the decay g and β, each (B,T,heads,…)
        - the logits of the output gate
        - the new convolution states
        - the inputs of the convolution
        """
        require_tensors("GatedDeltaNet", {"h": h}, {"mask": mask, "cu_seqlens": cu_seqlens})
        require_input("GatedDeltaNet", h, self.keys["hidden_size"])
        require_causal(self.conv1d, sum(self.widths), self.keys["linear_conv_kernel_dim"])
        self._refuse_tangents(h)
        if cu_seqlens is not None:
            require_sequences("GatedDeltaNet", h, cu_seqlens)
        if cache is not None:
            self._check_cache(cache, h, cu_seqlens)
        if mask is not None:
            if mask.shape != h.shape[:-1]:
                raise ValueError(f"GatedDeltaNet: mask is {list(mask.shape)} but must be {list(h.shape[:-1])}")
            h = h.masked_fill((mask == 0).unsqueeze(-1), 0)  # multiplying by 0 would not clear NaN and inf
        mixed, z, b, a = self._layout.project(self, h)
        if cache is not None and cache.convolution:
            rows = self.keys["linear_conv_kernel_dim"] - 1
            for x, own in zip_longest(cache.convolution, [(cache.state.shape[0], rows, x.shape[-1]) for x in mixed]):
                _require_shape("convolution", x, own)
        convolved, states = self._convolved(mixed, cache, cu_seqlens)
        return (*convolved, *self._decay_and_beta(a, b)), z, states, mixed

    def _refuse_tangents(self, h: Tensor) -> None:
        """Rejects forward mode. Errors name the input h or a parameter of the layer instead of arguments of inner
        functions.
        """
        given = {"h": h}
        if transforms_are_active():
            given |= dict(self.named_parameters())
        refuse_transforms("GatedDeltaNet", given, given)

    def _check_cache(self, cache: DeltaNetCache, h: Tensor, cu_seqlens: Tensor | None) -> None:
        if not isinstance(cache, DeltaNetCache):
            raise TypeError(f"GatedDeltaNet: cache is a {type(cache).__name__} but must be a DeltaNetCache")
        if torch.is_grad_enabled():
            raise ValueError("cache: there are no gradients with a cache: call the layer under torch.no_grad()")
        sequences = h.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if cache.state is None:
            return
        if cache.state.shape[0] != sequences:
            raise ValueError(f"cache: holds {cache.state.shape[0]} sequences but the layer was given {sequences}")
        _require_shape("state", cache.state, (sequences, self.Hv, self.D, self.Dv))


def _require_shape(part: str, x: Tensor | None, own: tuple[int, ...] | None) -> None:
    """Raises ValueError unless `x`, a part of a cache, has the shape `own` that the layer needs."""
    found = None if x is None else tuple(x.shape)
    if found != own:
        raise ValueError(f"cache: its {part} has shape {found} but must have {own}: another layer filled it")


def _in_own_names(
    layer: GatedDeltaNet,
    state_dict: dict[str, Any],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Renames tensors of a state dict to the layer's names. Joins a convolution that is stored in three parts.

    Adds the parts' wrong shapes to `errors`. Where a tensor's own name is in the state dict too, its other names stay.
    load_state_dict then reports them as unexpected.
    """
    whole, parts = f"{prefix}conv1d.weight", [f"{prefix}{letter}_conv1d.weight" for letter in "qkv"]
    if whole not in state_dict and all(part in state_dict for part in parts):
        shapes = [(width, *layer.conv1d.weight.shape[1:]) for width in layer.widths]
        found = [tuple(getattr(state_dict[part], "shape", ())) for part in parts]
        for part, shape, own in zip(parts, found, shapes):
            if shape != own:
                errors.append(f"size mismatch for {part}: it has shape {shape} but must have {own}.")
        tensors = [state_dict.pop(part) for part in parts]
        if found == shapes:
            state_dict[whole] = torch.cat(tensors)
    inner = layer._layout.inner_module
    for name in [name for name in state_dict if inner and name.startswith(prefix + inner)]:
        own_name = prefix + name.removeprefix(prefix + inner)
        if own_name not in state_dict:
            state_dict[own_name] = state_dict.pop(name)


def _olmo_sizes(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the layer's sizes from a config of OLMo-Hybrid. Missing keys get the defaults of that model."""
    heads = keys.get("linear_num_key_heads") or keys.get("num_attention_heads")
    if not heads or not keys.get("hidden_size"):
        return {}
    D = keys.get("linear_key_head_dim") or int(0.75 * keys["hidden_size"] / heads)
    return {
        "linear_num_key_heads": heads,
        "linear_num_value_heads": keys.get("num_attention_heads", heads),
        "linear_key_head_dim": D,
        "linear_value_head_dim": 2 * D,
        "linear_allow_neg_eigval": True,
    }


def _kimi_sizes(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the layer's sizes from a config of Kimi-Linear.

    Reads the keys that transformers uses, or those in linear_attn_config of a config.json.
    """
    of_file = keys.get("linear_attn_config") or {}
    found = {
        "linear_num_key_heads": of_file.get("num_heads", keys.get("linear_num_heads")),
        "linear_key_head_dim": of_file.get("head_dim", keys.get("linear_head_dim")),
        "linear_conv_kernel_dim": of_file.get("short_conv_kernel_size", keys.get("linear_conv_kernel_dim")),
    }
    return {name: value for name, value in found.items() if value is not None}


_PARAMETERS = tuple(inspect.signature(GatedDeltaNet.__init__).parameters)[1:]
