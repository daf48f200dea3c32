#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes llama.cpp's log-probabilities of token ids, read in pieces of several lengths.

    llamacpp_log_probs.py MODEL.gguf IDS.npy OUT.npz LENGTH …

OUT.npz has an array (tokens,vocab) for each LENGTH, under that name, in f64 and nats. Keys and values stay in f32.
Flash attention is off, since it rounds them. Exit status 3 means that this llama.cpp does not support the model. The
last line on stderr is then the reason.

Needs the interpreter that `scripts/python_venv.sh build peers` installs, with llama-cpp-python.
"""

import ctypes
import os
import sys

import llama_cpp
import numpy

F32 = 0  # ggml_type
FLASH_ATTENTION_OFF = 0
ERROR = 4  # ggml_log_level
NOT_READ = 3
errors = []


@llama_cpp.llama_log_callback
def on_message(level, text, _):
    if level == ERROR:
        errors.append(text.decode(errors="replace").strip())


def logits_in_pieces(model, ids, length):
    """Returns the logits (tokens,vocab). Reads pieces of at most `length` tokens, one after another, with a cache."""
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = len(ids)
    parameters.n_batch = parameters.n_ubatch = length
    parameters.n_outputs_max = parameters.n_outputs_max_per_seq = length
    parameters.n_threads = parameters.n_threads_batch = len(os.sched_getaffinity(0))
    parameters.type_k = parameters.type_v = F32
    parameters.flash_attn_type = FLASH_ATTENTION_OFF
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        sys.exit("llama_init_from_model failed: " + "; ".join(errors))
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    logits = numpy.empty((len(ids), vocab))
    batch = llama_cpp.llama_batch_init(length, 0, 1)
    for begin in range(0, len(ids), length):
        piece = ids[begin : begin + length]
        batch.n_tokens = len(piece)
        for i, token in enumerate(piece):
            batch.token[i], batch.pos[i] = int(token), begin + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            sys.exit(f"llama_decode returned {status}: " + "; ".join(errors))
        found = ctypes.cast(llama_cpp.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
        logits[begin : begin + len(piece)] = numpy.ctypeslib.as_array(found, (len(piece), vocab))
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    return logits


def main():
    path, ids_path, out, *lengths = sys.argv[1:]
    ids = numpy.load(ids_path)
    llama_cpp.llama_log_set(on_message, None)
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_extra_bufts = False  # keeps matrices in the layout of the file
    model = llama_cpp.llama_model_load_from_file(path.encode(), parameters)
    if not model:
        print("; ".join(errors), file=sys.stderr)
        sys.exit(NOT_READ)
    found = {}
    for length in lengths:
        logits = logits_in_pieces(model, ids, int(length))
        logits -= logits.max(1, keepdims=True)
        found[length] = logits - numpy.log(numpy.exp(logits).sum(1, keepdims=True))
    llama_cpp.llama_model_free(model)
    numpy.savez(out, **found)


if __name__ == "__main__":
    main()
