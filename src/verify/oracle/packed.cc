// SPDX-License-Identifier: Apache-2.0
#include "verify/oracle/packed.hpp"

#include <cstdint>
#include <vector>

#include "headgate/merge.hpp"
#include "library/core/check.hpp"
#include "library/core/element.hpp"
#include "verify/oracle/sinks.hpp"

namespace headgate::reference {
namespace {

/// The part of the packed tensors that belongs to one sequence: its T queries from q0 on, and its S keys from k0 on.
struct Place {
  std::int64_t q0, T, k0, S;
};

Place place_of(const AttentionInputs& in, std::int64_t n) {
  const std::int64_t q0 = load_index(in.cu_seqlens_q, n);
  if (in.block_table.present()) return {q0, load_index(in.cu_seqlens_q, n + 1) - q0, 0, key_columns(in)};
  const std::int64_t k0 = load_index(in.cu_seqlens_k, n);
  return {q0, load_index(in.cu_seqlens_q, n + 1) - q0, k0, load_index(in.cu_seqlens_k, n + 1) - k0};
}

std::int64_t sequences(const AttentionInputs& in) { return in.cu_seqlens_q.shape[3] - 1; }

ConstTensorView part(const ConstTensorView& view, std::size_t dimension, std::int64_t begin, std::int64_t size) {
  return view.present() ? narrow(view, dimension, begin, begin + size) : view;
}

/// Returns one sequence's part of a bias or mask: its rows and columns.
/// `one_row`: true if the bias or mask has a single row, which every query of every sequence uses.
ConstTensorView part_of_map(const ConstTensorView& map, const Place& at, bool one_row) {
  return part(one_row ? map : part(map, 2, at.q0, at.T), 3, at.k0, at.S);
}

/// Returns whether all queries share one row of the bias or mask.
bool has_one_row(const ConstTensorView& map, const AttentionInputs& in) {
  return map.shape[2] == 1 && in.q.shape[2] != 1;
}

/// The inputs of one sequence, as views into the packed inputs.
/// With a block table and without query_offsets, the sequence still needs a query offset. `first_position` then stores
/// this offset, and `in.query_offsets` is a view of it.
struct OneSequence {
  std::int64_t first_position = 0;
  AttentionInputs in;

  OneSequence(const AttentionInputs& all, std::int64_t n, const Place& at) : in(all) {
    in.cu_seqlens_q = in.cu_seqlens_k = {};
    in.q = part(all.q, 2, at.q0, at.T);
    in.gate = part(all.gate, 2, at.q0, at.T);
    in.bias = part_of_map(all.bias, at, has_one_row(all.bias, all));
    in.key_bias = part_of_map(all.key_bias, at, true);
    in.key_indices = part(all.key_indices, 2, at.q0, at.T);
    in.mask = part_of_map(all.mask, at, has_one_row(all.mask, all));
    in.key_lengths = part(all.key_lengths, 3, n, 1);
    in.query_offsets = part(all.query_offsets, 3, n, 1);
    if (has_query_sinks(all)) in.sinks = part(all.sinks, 2, at.q0, at.T);
    in.k_first = part(all.k_first, 0, n, 1);
    in.v_first = part(all.v_first, 0, n, 1);
    if (all.alibi_slopes.shape[2] > 1) in.alibi_slopes = part(all.alibi_slopes, 2, n, 1);
    if (all.block_table.present()) {
      in.block_table = part(all.block_table, 2, n, 1);
      if (in.query_offsets.present()) return;
      first_position = load_index(all.key_lengths, n) - at.T;  // aligns the last query with the last key
      in.query_offsets = make_vector_view(static_cast<const std::int64_t*>(&first_position), 1);
      return;
    }
    for (ConstTensorView AttentionInputs::*keys :
         {&AttentionInputs::k, &AttentionInputs::v, &AttentionInputs::k_scale, &AttentionInputs::v_scale}) {
      in.*keys = part(all.*keys, 2, at.k0, at.S);
    }
  }
  OneSequence(const OneSequence&) = delete;
  OneSequence& operator=(const OneSequence&) = delete;
};

/// A block of rows and columns in a larger array (heads, rows, columns).
struct Window {
  std::int64_t heads = 0;
  std::int64_t rows = 0, columns = 0;          // rows and columns of the block
  std::int64_t all_rows = 0, all_columns = 0;  // rows and columns of the larger array
  std::int64_t row = 0, column = 0;            // first row and column of the block
};

/// Calls visit(n, at) for each element of the block: n is the element's index in the block, and `at` the same element's
/// index in the larger array.
template <typename Visit>
void for_each(const Window& w, const Visit& visit) {
  std::int64_t next = 0;
  for (std::int64_t h = 0; h < w.heads; ++h) {
    for (std::int64_t i = 0; i < w.rows; ++i) {
      const std::int64_t at = (h * w.all_rows + w.row + i) * w.all_columns + w.column;
      for (std::int64_t x = 0; x < w.columns; ++x) visit(next++, at + x);
    }
  }
}

void put(std::vector<double>& to, const std::vector<double>& from, const Window& w) {
  to.resize(w.heads * w.all_rows * w.all_columns);
  for_each(w, [&](std::int64_t n, std::int64_t at) { to[at] = from[n]; });
}

std::vector<double> cut(const std::vector<double>& from, const Window& w) {
  std::vector<double> block(w.heads * w.rows * w.columns);
  for_each(w, [&](std::int64_t n, std::int64_t at) { block[n] = from[at]; });
  return block;
}

void put_forward(ForwardArrays& to, const ForwardArrays& from, const AttentionInputs& in, const Place& at) {
  const std::int64_t Hq = in.q.shape[1], T = in.q.shape[2], S = key_columns(in), Dv = in.v.shape[3];
  const auto rows = [&](std::int64_t width) { return Window{Hq, at.T, width, T, width, at.q0, 0}; };
  put(to.y, from.y, rows(Dv));
  put(to.attn, from.attn, rows(Dv));
  put(to.lse, from.lse, rows(1));
  if (!from.max_logit.empty()) put(to.max_logit, from.max_logit, rows(1));
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
  if (in.sinks.present() && has_query_sinks(in)) return put(to.dsinks, from.dsinks, queries(1));
  to.dsinks.resize(from.dsinks.size());
  for (std::size_t h = 0; h < from.dsinks.size(); ++h) to.dsinks[h] += from.dsinks[h];
}

/// Cuts out one sequence's lse and weights, the inputs of the statistics.
ForwardArrays cut_forward(const ForwardArrays& from, const AttentionInputs& in, const Place& at) {
  const std::int64_t Hq = in.q.shape[1], T = in.q.shape[2], S = key_columns(in);
  ForwardArrays own;
  own.lse = cut(from.lse, {Hq, at.T, 1, T, 1, at.q0, 0});
  own.weights = cut(from.weights, {Hq, at.T, at.S, T, S, at.q0, at.k0});
  return own;
}

/// Returns the selected queries that belong to the sequence, as indices within the sequence.
std::vector<std::int64_t> queries_of(const StatisticsSelection& selection, const Place& at) {
  std::vector<std::int64_t> own;
  for (std::int64_t r = 0; r < selection.queries.shape[3]; ++r) {
    const std::int64_t i = load_index(selection.queries, r) - at.q0;
    if (i >= 0 && i < at.T) own.push_back(i);
  }
  return own;
}

/// Copies the rows of a sequence's selected queries into `to` (Hq,R,S), which holds the rows of all selected queries.
void put_rows(std::vector<double>& to, const std::vector<double>& from, const AttentionInputs& in,
              const StatisticsSelection& selection, const Place& at) {
  const std::int64_t Hq = in.q.shape[1], S = key_columns(in), R = selection.queries.shape[3];
  const auto listed = static_cast<std::int64_t>(queries_of(selection, at).size());
  std::int64_t next = 0;
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int64_t i = load_index(selection.queries, r) - at.q0;
    if (i < 0 || i >= at.T) continue;
    put(to, cut(from, {Hq, 1, at.S, listed, at.S, next++, 0}), {Hq, 1, at.S, R, S, r, at.k0});
  }
}

/// Copies one output of a sequence into the output of the packed batch.
void put_statistic(std::vector<double>& to, const std::vector<double>& from, const StatisticsOutput& output,
                   const AttentionInputs& in, const StatisticsSelection& selection, const Place& at) {
  const std::int64_t Hq = in.q.shape[1], T = in.q.shape[2], S = key_columns(in);
  const bool shares_columns = output.fourth == StatisticsDim::keys && in.cu_seqlens_k.present();
  if (output.of_sequence() && !shares_columns) {
    to.insert(to.end(), from.begin(), from.end());
  } else if (output.third == StatisticsDim::chosen_rows) {
    put_rows(to, from, in, selection, at);
  } else if (output.of_sequence()) {
    put(to, from, {Hq, 1, at.S, 1, S, 0, at.k0});
  } else {
    const std::int64_t rows = Hq * at.T;
    const std::int64_t width = rows > 0 ? static_cast<std::int64_t>(from.size()) / rows : 0;
    if (rows > 0) put(to, from, {Hq, at.T, width, T, width, at.q0, 0});
  }
}

}  // namespace

Forward packed_forward(const AttentionInputs& inputs, const AttentionOptions& options) {
  Forward out;
  for (std::int64_t n = 0; n < sequences(inputs); ++n) {
    const Place at = place_of(inputs, n);
    const Forward one = forward(OneSequence(inputs, n, at).in, options, n);
    put_forward(out, one, inputs, at);
    put_forward(out.magnitude, one.magnitude, inputs, at);
    put_forward(out.inherited, one.inherited, inputs, at);
  }
  return out;
}

Backward packed_backward(const AttentionInputs& inputs, const AttentionIncoming& incoming,
                         const AttentionOptions& options) {
  require(!inputs.block_table.present(), "reference: no backward pass through the pages of a cache");
  Backward out;
  for (std::int64_t n = 0; n < sequences(inputs); ++n) {
    const Place at = place_of(inputs, n);
    const AttentionIncoming own{part(incoming.dy, 2, at.q0, at.T), part(incoming.dlse, 2, at.q0, at.T)};
    const Backward one = backward(OneSequence(inputs, n, at).in, own, options, n);
    put_backward(out, one, inputs, at);
    put_backward(out.magnitude, one.magnitude, inputs, at);
    put_backward(out.inherited, one.inherited, inputs, at);
    put_backward(out.like_terms, one.like_terms, inputs, at);
  }
  return out;
}

Statistics packed_statistics(const Forward& forward, const AttentionInputs& inputs, const AttentionOptions& options,
                             const StatisticsSelection& selection, std::int64_t top_keys) {
  Statistics out;
  for (std::int64_t n = 0; n < sequences(inputs); ++n) {
    const Place at = place_of(inputs, n);
    const std::vector<std::int64_t> queries = queries_of(selection, at);
    StatisticsSelection own = selection;
    own.queries = make_vector_view(queries.data(), static_cast<std::int64_t>(queries.size()));
    const Forward part_of_forward{cut_forward(forward, inputs, at), cut_forward(forward.magnitude, inputs, at),
                                  cut_forward(forward.inherited, inputs, at)};
    const OneSequence sequence(inputs, n, at);
    const Statistics one = statistics(part_of_forward, sequence.in, options, own, top_keys);
    for (std::size_t o = 0; o < kStatisticsOutputs.size(); ++o) {
      for (const auto member : {&StatisticsArray::value, &StatisticsArray::magnitude, &StatisticsArray::like_terms}) {
        if (kStatisticsOutputs[o].is_index()) continue;
        put_statistic(out.outputs[o].*member, one.outputs[o].*member, kStatisticsOutputs[o], inputs, selection, at);
      }
    }
  }
  return out;
}

}  // namespace headgate::reference
