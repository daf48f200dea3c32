// SPDX-License-Identifier: Apache-2.0
#include "tool/attend/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/error.hpp"
#include "library/core/check.hpp"
#include "library/core/gate_functions.hpp"

namespace headgate::attend {
namespace {

// Limit of B·H. A file without elements may have any number of heads, and each is visited.
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 24;

template <typename Array>
auto view4(Array& array) {
  std::conditional_t<std::is_const_v<Array>, ConstTensorView, TensorView> view;
  if (!array.present()) return view;
  view.data = array.data.get();
  view.dtype = array.dtype;
  view.shape = {1, 1, 1, 1};
  const std::size_t lead = 4 - array.shape.size();
  std::copy(array.shape.begin(), array.shape.end(), view.shape.begin() + static_cast<std::ptrdiff_t>(lead));
  view.strides = contiguous_strides(view.shape);
  std::copy(array.strides.begin(), array.strides.end(), view.strides.begin() + static_cast<std::ptrdiff_t>(lead));
  return view;
}

void check_rank(const std::string& path, const io::Array& array, std::size_t low, std::size_t high,
                const char* wanted) {
  if (!array.present() || (array.shape.size() >= low && array.shape.size() <= high)) return;
  io::fail(path, "has shape {} but must be {}", io::shape_text(array.shape), wanted);
}

void check_ranks(const Files& files, const Arrays& a) {
  check_rank(files.q, a.q, 2, 4, "(T,D), (H,T,D) or (B,H,T,D)");
  const std::size_t rank = a.q.shape.size();
  const std::string like_q = fmt::format("of rank {} as q, {}, is", rank, io::shape_text(a.q.shape));
  check_rank(files.k, a.k, rank, rank, like_q.c_str());
  check_rank(files.v, a.v, rank, rank, like_q.c_str());
  check_rank(files.gate, a.gate, rank, rank, like_q.c_str());
  check_rank(files.grad_out, a.grad_out, rank, rank, like_q.c_str());
  check_rank(files.bias, a.bias, 2, 4, "(T,S), (H,T,S) or (B,H,T,S), each but S full or 1");
  check_rank(files.mask, a.mask, 2, 4, "(T,S), (H,T,S) or (B,H,T,S), each but S full or 1");
  check_rank(files.key_lengths, a.key_lengths, 1, 1, "(B,)");
  check_rank(files.query_offsets, a.query_offsets, 1, 1, "(B,)");
  check_rank(files.cu_seqlens_q, a.cu_seqlens_q, 1, 1, "(N+1,)");
  check_rank(files.cu_seqlens_k, a.cu_seqlens_k, 1, 1, "(N+1,)");
  check_rank(files.alibi, a.alibi, 1, 1, "(H,)");
  check_rank(files.sinks, a.sinks, 1, 1, "(H,)");
  check_rank(files.block_table, a.block_table, 2, 2, "(B,M), or (N,M) of a packed batch");
  check_rank(files.k_scale, a.k_scale, rank, rank, like_q.c_str());
  check_rank(files.v_scale, a.v_scale, rank, rank, like_q.c_str());
  for (const auto* named : {&a.q, &a.k}) {
    const ConstTensorView view = view4(*named);
    if (view.shape[0] > kMaxHeads / std::max<std::int64_t>(view.shape[1], 1)) {
      io::fail(named == &a.q ? files.q : files.k, "has shape {}: more than {} heads in all",
               io::shape_text(named->shape), kMaxHeads);
    }
  }
}

/// An array of the dimensions of q without its last one, followed by `last`.
io::Array make_output(DType dtype, const io::Array& q, std::vector<std::int64_t> last) {
  std::vector<std::int64_t> shape(q.shape.begin(), q.shape.end() - 1);
  shape.insert(shape.end(), last.begin(), last.end());
  return io::make_array(dtype, std::move(shape));
}

/// (B,Hq,T,1) over an array of q's leading dimensions.
template <typename Array>
auto row_view(Array& array) {
  auto view = view4(array);
  if (!view.present()) return view;
  for (std::size_t d = 0; d < 3; ++d) {
    view.shape[d] = view.shape[d + 1];
    view.strides[d] = view.strides[d + 1];
  }
  view.shape[3] = 1;
  view.strides[3] = 1;
  return view;
}

AttentionInputs inputs_of(const Arrays& a) {
  AttentionInputs in;
  in.q = view4(a.q);
  in.k = view4(a.k);
  in.v = view4(a.v);
  in.gate = view4(a.gate);
  in.bias = view4(a.bias);
  in.mask = view4(a.mask);
  in.key_lengths = view4(a.key_lengths);
  in.query_offsets = view4(a.query_offsets);
  in.cu_seqlens_q = view4(a.cu_seqlens_q);
  in.cu_seqlens_k = view4(a.cu_seqlens_k);
  in.alibi_slopes = view4(a.alibi);
  in.sinks = view4(a.sinks);
  in.block_table = view4(a.block_table);
  in.k_scale = view4(a.k_scale);
  in.v_scale = view4(a.v_scale);
  return in;
}

/// S; 0 where it would overflow, which the call refuses.
std::int64_t keys_of(const AttentionInputs& in) {
  std::int64_t keys = in.k.shape[2];
  if (in.block_table.present() && __builtin_mul_overflow(keys, in.block_table.shape[3], &keys)) return 0;
  return keys;
}

void run_backward(const Arrays& a, const AttentionInputs& in, const AttentionOptions& options, bool has_gate,
                  Results& r) {
  r.dq = io::make_array(a.q.dtype, a.q.shape);
  r.dk = io::make_array(a.q.dtype, a.k.shape);
  r.dv = io::make_array(a.q.dtype, a.v.shape);
  if (has_gate) r.dgate = io::make_array(a.gate.dtype, a.gate.shape);
  if (a.bias.present()) r.dbias = io::make_array(a.bias.dtype, a.bias.shape);
  if (a.sinks.present()) r.dsinks = io::make_array(a.sinks.dtype, a.sinks.shape);
  AttentionGradients gradients;
  gradients.dq = view4(r.dq);
  gradients.dk = view4(r.dk);
  gradients.dv = view4(r.dv);
  gradients.dgate = view4(r.dgate);
  gradients.dbias = view4(r.dbias);
  gradients.dsinks = view4(r.dsinks);
  AttentionSaved saved;
  saved.y = view4(r.y);
  saved.lse = row_view(r.lse);
  saved.attn = view4(r.attn);
  AttentionIncoming incoming;
  incoming.dy = view4(a.grad_out);
  attention_backward(gradients, in, saved, incoming, options);
}

/// In the shape of q's leading dimensions, or (N,Hq), then the output's own; dimensions of 1 that are the output's are
/// left out.
io::Array make_statistic(const StatisticsOutput& output, const io::Array& q, const StatisticsSizes& sizes) {
  std::vector<std::int64_t> shape(q.shape.begin(), q.shape.end() - 2);
  const Shape whole = sizes.shape(output);
  if (whole[0] != sizes.B) shape = {whole[0], sizes.Hq};
  if (output.third != StatisticsDim::one) shape.push_back(sizes.of(output.third));
  if (output.fourth != StatisticsDim::one) shape.push_back(sizes.of(output.fourth));
  const DType real = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  return io::make_array(output.is_index() ? DType::i64 : real, std::move(shape));
}

void run_statistics(const Statistics& wanted, const Arrays& a, const AttentionInputs& in,
                    const AttentionOptions& options, Results& r) {
  const auto R = static_cast<std::int64_t>(wanted.queries.size());
  StatisticsSizes sizes{in.q.shape[0], in.q.shape[1], in.q.shape[2], keys_of(in)};
  sizes.sequences = in.cu_seqlens_q.present() ? in.cu_seqlens_q.shape[3] - 1 : sizes.B;
  sizes.key_batches = in.cu_seqlens_k.present() ? sizes.B : sizes.sequences;
  sizes.chosen_rows = R;
  sizes.top_keys = wanted.top_keys;
  AttentionStatistics outputs;
  for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
    const StatisticsOutput& output = kStatisticsOutputs[n];
    if (!wanted.wants(output)) continue;
    io::Array& array = r.statistics[n];
    array = make_statistic(output, a.q, sizes);
    const Shape shape = sizes.shape(output);
    outputs.*output.member = TensorView(array.data.get(), array.dtype, shape, contiguous_strides(shape));
  }
  StatisticsSelection selection;
  if (R > 0) selection.queries = make_vector_view(wanted.queries.data(), R);
  selection.window = wanted.window.value_or(0);
  attention_statistics(outputs, in, row_view(r.lse), selection, options);
}

/// Removes the function's name from a library message: the command line prints the verb instead.
std::string without_function(std::string what) {
  for (const std::string prefix : {"attention_forward: ", "attention_backward: ", "attention_statistics: "}) {
    if (what.starts_with(prefix)) what.erase(0, prefix.size());
  }
  return what;
}

/// Returns the file of the argument that a library message begins with; empty if it begins with none.
std::string file_of_argument(const Files& files, std::string_view message) {
  const std::pair<std::string_view, const std::string*> arguments[] = {{"q", &files.q},
                                                                       {"k", &files.k},
                                                                       {"v", &files.v},
                                                                       {"gate", &files.gate},
                                                                       {"bias", &files.bias},
                                                                       {"mask", &files.mask},
                                                                       {"key_lengths", &files.key_lengths},
                                                                       {"query_offsets", &files.query_offsets},
                                                                       {"cu_seqlens_q", &files.cu_seqlens_q},
                                                                       {"cu_seqlens_k", &files.cu_seqlens_k},
                                                                       {"alibi_slopes", &files.alibi},
                                                                       {"sinks", &files.sinks},
                                                                       {"block_table", &files.block_table},
                                                                       {"k_scale", &files.k_scale},
                                                                       {"v_scale", &files.v_scale},
                                                                       {"dy", &files.grad_out}};
  const std::string_view name = message.substr(0, message.find_first_of("[ "));
  for (const auto& [argument, path] : arguments) {
    if (argument == name) return *path;
  }
  return "";
}

/// Throws Error if --rows names a query that q does not have.
void check_rows(const Statistics& wanted, const io::Array& q) {
  const std::int64_t T = q.shape[q.shape.size() - 2];
  for (const std::int64_t row : wanted.queries) {
    require(row >= 0 && row < T, "--rows {}: there is no query {}; q has {}, numbered from 0",
            fmt::join(wanted.queries, ","), row, T);
  }
}

}  // namespace

bool Statistics::wants(const StatisticsOutput& output) const {
  using S = AttentionStatistics;
  if (output.fourth == StatisticsDim::top_keys) return top_keys > 0;
  if (output.third == StatisticsDim::chosen_rows) return !queries.empty();
  if (output.member == &S::window_share) return window.has_value();
  if (output.member == &S::first_gated) return gated;
  return output.member == &S::row_max || output.member == &S::entropy || output.member == &S::first ||
         output.member == &S::key_mass;
}

Results compute(const Files& files, const Arrays& a, const AttentionOptions& options, bool off_by_one) {
  check_ranks(files, a);
  check_rows(files.statistics, a.q);
  AttentionInputs in = inputs_of(a);
  io::Array zero_sinks;
  if (off_by_one) {
    zero_sinks = io::make_array(DType::f32, {in.q.shape[1]});
    std::memset(zero_sinks.data.get(), 0, zero_sinks.bytes());
    in.sinks = view4(zero_sinks);
  }
  const bool backward = a.grad_out.present();
  const bool has_gate = a.gate.present() && options.gate_fn != GateFn::none;
  const DType lse_dtype = a.q.dtype == DType::f64 ? DType::f64 : DType::f32;

  Results r;
  r.y = make_output(a.q.dtype, a.q, {in.v.shape[3]});
  const bool statistics = !files.statistics.directory.empty();
  if (backward || statistics || !files.lse.empty()) r.lse = make_output(lse_dtype, a.q, {});
  if (!files.weights.empty()) r.weights = make_output(a.q.dtype, a.q, {keys_of(in)});
  if (backward && a.gate.present() && keeps_output(options.gate_fn, options.gate_op)) {
    r.attn = make_output(a.q.dtype, a.q, {in.v.shape[3]});
  }
  AttentionOutputs outputs;
  outputs.y = view4(r.y);
  outputs.lse = row_view(r.lse);
  outputs.attn = view4(r.attn);
  outputs.weights = view4(r.weights);
  try {
    attention_forward(outputs, in, options);
    if (statistics) run_statistics(files.statistics, a, in, options, r);
    if (backward) run_backward(a, in, options, has_gate, r);
  } catch (const Error& error) {
    const std::string what = without_function(error.what());
    const std::string file = file_of_argument(files, what);
    if (!file.empty()) io::fail(file, "{}", what);
    throw Error(what);
  }
  return r;
}

}  // namespace headgate::attend
