# SPDX-License-Identifier: Apache-2.0
"""Classifies the keyword arguments in calls of other libraries' functions: used, harmless or rejected.

The function that replaces another library's function declares the arguments that it uses as parameters. The tables in
this module list harmless arguments, with the reason why they do not change the result. Any other argument is an error,
since ignoring it could silently give a wrong result.
"""

from collections.abc import Mapping
from typing import Any

# Arguments that models of transformers pass on to every inner function. Only the model itself reads them.
OF_MODELS = {
    "num_items_in_batch": "divides the loss",
    "output_hidden_states": "says what the model returns",
    "output_router_logits": "says what the model returns",
    "return_dict": "says what the model returns",
    "use_cache": "says whether the model returns its cache",
    "logits_to_keep": "says which tokens have logits",
    "input_ids": "the model has read it",
    "inputs_embeds": "the model has read it",
    "decoder_input_ids": "the model has read it",
    "decoder_inputs_embeds": "the model has read it",
    "decoder_position_ids": "the model has read it",
    "encoder_outputs": "the model has read it",
    "grid_thw": "the model has read it",
}
# Hints for kernels that need the longest sequence length of a packed batch.
_LENGTHS = {
    "max_length_q": "cu_seq_lens_q says it",
    "max_length_k": "cu_seq_lens_k says it",
}

CACHES = dict.fromkeys(("cache", "past_key_values", "cache_params"), "the model has read and updated it")
"""Arguments that are harmless if their value is a Cache of transformers. The model passes the cached keys, values or
states separately."""

ATTENTION = {
    **OF_MODELS,
    **_LENGTHS,
    "position_ids": "the model has rotated q and k by them; packed_rows.py finds the sequences of a row in them",
    "position_embeddings": "the model has rotated q and k by them",
    "seq_idx": "the mask and cu_seq_lens_q keep sequences apart; this is for linear attention",
    "deterministic": "results are bitwise reproducible in any case",
}
"""Harmless arguments of the attention interface of transformers."""

RULE = {
    **OF_MODELS,
    **CACHES,
    **_LENGTHS,
    "position_ids": "linear attention has no positions, and seq_idx or cu_seq_lens_q keep sequences apart",
    "position_embeddings": "linear attention has no positions",
    "cu_seq_lens_k": "there are as many keys as queries",
    "chunk_size": "results do not depend on it",
    "cu_seqlens_cpu": "cu_seqlens says it",
    "output_attentions": "there are no weights",
    "is_causal": "a recurrence is causal",
}
"""Harmless arguments of the delta rule in transformers."""

CONVOLUTION = RULE
"""Harmless arguments of the causal convolution in transformers."""

_HINTS = "BACKEND BLOCKS_ARE_CONTIGUOUS BLOCK_M BLOCK_M1 BLOCK_M2 BLOCK_N BLOCK_N1 BLOCK_N2 FORCE_USE_FLEX_ATTENTION"
_HINTS += (
    " PRESCALE_QK ROWS_GUARANTEED_SAFE USE_TMA WRITE_DQ kpack matrix_instr_nonkdim num_stages num_warps waves_per_eu"
)
KERNEL_OPTIONS = dict.fromkeys(_HINTS.split(), "is a hint to other kernels")
"""Harmless keys of flex_attention's kernel_options. Each may have the prefix "fwd_" or "bwd_"."""

MASK = {
    "dtype": "masks are boolean, or rules",
    "allow_torch_fix": "is for versions of PyTorch before 2.5",
}
"""Harmless arguments of the mask interface of transformers, in addition to the parameters of sdpa_mask."""


def refuse_unknown(what: str, given: Mapping[str, Any], harmless: Mapping[str, str], instead: str) -> None:
    """Raises ValueError if an argument in `given` is not None and not in `harmless`.

    The error names the function `what`, and ends with the advice `instead`.
    """
    for name, value in given.items():
        if value is not None and name not in harmless:
            raise ValueError(f"{what}: argument '{name}' is not supported and may change the result: {instead}")


def refuse_other_aux(what: str, return_aux: Any, known: tuple[str, ...]) -> None:
    """Raises ValueError if an AuxRequest requests a result that is not in `known`."""
    for name in getattr(return_aux, "_fields", ()):
        if name not in known and getattr(return_aux, name):
            raise ValueError(f"{what}: return_aux asks for {name}, which is not returned: ask for {' or '.join(known)}")
