// SPDX-License-Identifier: Apache-2.0
#include "reference/packed.hpp"

#include <cstdint>
#include <vector>

#include "core/element.hpp"
#include "headgate/merge.hpp"

namespace headgate::reference {
namespace {

/// A sequence's rows and columns of the packed tensors.
struct Place {
  std::int64_t q0, T, k0, S;
};

Place place_of(const AttentionInputs& in, std::int64_t n) {
  const std::int64_t q0 = load_index(in.cu_seqlens_q, n);
  const std::int64_t k0 = load_index(in.cu_seqlens_k, n);
  return {q0, load_index(in.cu_seqlens_q, n + 1) - q0, k0, load_index(in.cu_seqlens_k, n + 1) - k0};
}

std::int64_t sequences(const AttentionInputs& in) { return in.cu_seqlens_q.shape[3] - 1; }

ConstTensorView part(const ConstTensorView& view, std::size_t dimension, std::int64_t begin, std::int64_t size) {
  return view.present() ? narrow(view, dimension, begin, begin + size) : view;
}

/// The sequence's part of a bias or mask: all rows where one stands for all of them.
ConstTensorView part_of_map(const ConstTensorView& map, const Place& at, bool one_row) {
  return part(one_row ? map : part(map, 2, at.q0, at.T), 3, at.k0, at.S);
}

/// Whether one row of the bias or mask stands for all queries.
bool has_one_row(const ConstTensorView& map, const AttentionInputs& in) {
  return map.shape[2] == 1 && in.q.shape[2] != 1;
}

AttentionInputs sequence_inputs(const AttentionInputs& in, std::int64_t n, const Place& at) {
  AttentionInputs one = in;
  one.cu_seqlens_q = one.cu_seqlens_k = {};
  one.q = part(in.q, 2, at.q0, at.T);
  one.gate = part(in.gate, 2, at.q0, at.T);
  one.k = part(in.k, 2, at.k0, at.S);
  one.v = part(in.v, 2, at.k0, at.S);
  one.k_scale = part(in.k_scale, 2, at.k0, at.S);
  one.v_scale = part(in.v_scale, 2, at.k0, at.S);
  one.bias = part_of_map(in.bias, at, has_one_row(in.bias, in));
  one.mask = part_of_map(in.mask, at, has_one_row(in.mask, in));
  one.key_lengths = part(in.key_lengths, 3, n, 1);
  one.query_offsets = part(in.query_offsets, 3, n, 1);
  return one;
}

/// Where a block of an array (heads, rows, columns) lies in a larger one.
struct Window {
  std::int64_t heads = 0;
  std::int64_t rows = 0, columns = 0;          // of the block
  std::int64_t all_rows = 0, all_columns = 0;  // of the array
  std::int64_t row = 0, column = 0;            // the block's first
};

void put(std::vector<double>& to, const std::vector<double>& from, const Window& w) {
  to.resize(w.heads * w.all_rows * w.all_columns);
  std::size_t next = 0;
  for (std::int64_t h = 0; h < w.heads; ++h) {
    for (std::int64_t i = 0; i < w.rows; ++i) {
      const std::int64_t at = (h * w.all_rows + w.row + i) * w.all_columns + w.column;
      for (std::int64_t x = 0; x < w.columns; ++x) to[at + x] = from[next++];
    }
  }
}

void put_forward(ForwardArrays& to, const ForwardArrays& from, const AttentionInputs& in, const Place& at) {
  const std::int64_t Hq = in.q.shape[1], T = in.q.shape[2], S = in.k.shape[2], Dv = in.v.shape[3];
  const auto rows = [&](std::int64_t width) { return Window{Hq, at.T, width, T, width, at.q0, 0}; };
  put(to.y, from.y, rows(Dv));
  put(to.attn, from.attn, rows(Dv));
  put(to.lse, from.lse, rows(1));
  put(to.weights, from.weights, {Hq, at.T, at.S, T, S, at.q0, at.k0});
}

void put_backward(BackwardArrays& to, const BackwardArrays& from, const AttentionInputs& in, const Place& at) {
  const std::int64_t Hq = in.q.shape[1], Hkv = in.k.shape[1], T = in.q.shape[2], S = in.k.shape[2];
  const auto queries = [&](std::int64_t width) { return Window{Hq, at.T, width, T, width, at.q0, 0}; };
  const auto keys = [&](std::int64_t width) { return Window{Hkv, at.S, width, S, width, at.k0, 0}; };
  put(to.dq, from.dq, queries(in.q.shape[3]));
  put(to.dk, from.dk, keys(in.k.shape[3]));
  put(to.dv, from.dv, keys(in.v.shape[3]));
  if (in.gate.present()) put(to.dgate, from.dgate, queries(in.gate.shape[3]));
  if (in.bias.present()) {
    const bool one_row = has_one_row(in.bias, in);
    put(to.dbias, from.dbias,
        {in.bias.shape[1], one_row ? 1 : at.T, at.S, in.bias.shape[2], S, one_row ? 0 : at.q0, at.k0});
  }
  to.dsinks.resize(from.dsinks.size());
  for (std::size_t h = 0; h < from.dsinks.size(); ++h) to.dsinks[h] += from.dsinks[h];
}

}  // namespace

Forward packed_forward(const AttentionInputs& inputs, const AttentionOptions& options) {
  Forward out;
  for (std::int64_t n = 0; n < sequences(inputs); ++n) {
    const Place at = place_of(inputs, n);
    const Forward one = forward(sequence_inputs(inputs, n, at), options);
    put_forward(out, one, inputs, at);
    put_forward(out.magnitude, one.magnitude, inputs, at);
  }
  return out;
}

Backward packed_backward(const AttentionInputs& inputs, const AttentionIncoming& incoming,
                         const AttentionOptions& options) {
  Backward out;
  for (std::int64_t n = 0; n < sequences(inputs); ++n) {
    const Place at = place_of(inputs, n);
    const AttentionIncoming own{part(incoming.dy, 2, at.q0, at.T), part(incoming.dlse, 2, at.q0, at.T)};
    const Backward one = backward(sequence_inputs(inputs, n, at), own, options);
    put_backward(out, one, inputs, at);
    put_backward(out.magnitude, one.magnitude, inputs, at);
    put_backward(out.inherited, one.inherited, inputs, at);
    put_backward(out.like_terms, one.like_terms, inputs, at);
  }
  return out;
}

}  // namespace headgate::reference
