// SPDX-License-Identifier: Apache-2.0
#include "library/linear_attention/linear_statistics.hpp"

#include <algorithm>

#include "library/call/call.hpp"
#include "library/call/verbose.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/linear_statistics_rows.hpp"
#include "library/core/tensor_rows.hpp"

namespace headgate {
namespace {

LinearOutputSizes sizes_of(const LinearProblem& p, std::int64_t R) { return {p.B, p.N, p.Hv, p.Ho(), p.T, p.D, R}; }

template <class Rows>
void check_outputs(Call& call, const Rows& rows, const typename Rows::value_type::Struct& outputs,
                   const LinearOutputSizes& sizes) {
  for (const auto& row : rows) {
    const Argument arg{row.name, outputs.*row.member};
    if (!call.given(arg)) continue;
    call.output(arg, {DType::f32, DType::f64});
    call.shape(arg, view_letters(row.dims), sizes.shape(row.dims));
  }
}

/// Divides queries [first, first + count) of sequence n into tiles.
void add_tiles(std::vector<QueryTile>& tiles, std::int64_t n, std::int64_t first, std::int64_t count) {
  for (std::int64_t at = 0; at < count; at += kWalkQueries)
    tiles.push_back({n, first + at, std::min(kWalkQueries, count - at)});
}

std::vector<ChosenQuery> sorted_by_token(const ConstTensorView& queries) {
  std::vector<ChosenQuery> chosen;
  for (std::int64_t r = 0; r < queries.shape[3]; ++r) chosen.push_back({load_index(queries, r), r});
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const ChosenQuery& a, const ChosenQuery& b) { return a.token < b.token; });
  return chosen;
}

std::vector<QueryTile> tiles_of_chosen(const LinearWeightsProblem& p) {
  std::vector<QueryTile> tiles;
  const auto first_from = [&p](std::int64_t token) {
    const auto at = std::lower_bound(p.chosen.begin(), p.chosen.end(), token,
                                     [](const ChosenQuery& query, std::int64_t t) { return query.token < t; });
    return static_cast<std::int64_t>(at - p.chosen.begin());
  };
  for (std::int64_t n = 0; n < p.N && !p.chosen.empty(); ++n) {
    const TokenRange s = p.sequence(n);
    const std::int64_t first = first_from(s.t0);
    add_tiles(tiles, n, first, first_from(s.t0 + s.T) - first);
  }
  return tiles;
}

LinearWeightsProblem check_weights(const LinearAttentionWeights& outputs, const LinearAttentionInputs& inputs,
                                   const ConstTensorView& queries, const LinearAttentionOptions& options) {
  Call call("linear_attention_weights");
  LinearWeightsProblem p{check_linear_inputs(call, inputs, options), outputs, {}, {}};
  const Argument chosen{"queries", queries};
  call.require_given(chosen);
  call.indices(chosen, "(1,1,1,R)", "T", p.T);
  check_outputs(call, kLinearWeights, outputs, sizes_of(p, queries.shape[3]));
  call.no_overlap();
  if (!outputs.weights.present() && !outputs.state_query.present()) return p;
  p.chosen = sorted_by_token(queries);
  p.tiles = tiles_of_chosen(p);
  return p;
}

LinearStatisticsProblem check_linear_statistics(const LinearAttentionStatistics& outputs,
                                                const LinearAttentionInputs& inputs,
                                                const LinearAttentionOptions& options) {
  Call call("linear_attention_statistics");
  LinearStatisticsProblem p{check_linear_inputs(call, inputs, options), outputs, {}};
  check_outputs(call, kLinearStatistics, outputs, sizes_of(p, 0));
  call.no_overlap();
  for (std::int64_t n = 0; n < p.N && p.walks() && p.T > 0; ++n) add_tiles(p.tiles, n, 0, p.sequence(n).T);
  return p;
}

}  // namespace

bool LinearStatisticsProblem::walks() const {
  return wants_query_statistic(outputs, kQueryFirstShare) || wants_query_statistic(outputs, kQueryReach) ||
         wants_query_statistic(outputs, kQueryAbsoluteSum);
}

bool LinearStatisticsProblem::scans() const {
  return wants_query_statistic(outputs, kQueryFirst) || wants_query_statistic(outputs, kQueryWeightSum) ||
         outputs.mean_decay.present() || outputs.mean_beta.present() || outputs.half_life.present();
}

void linear_attention_weights(const LinearAttentionWeights& outputs, const LinearAttentionInputs& inputs,
                              const ConstTensorView& queries, const LinearAttentionOptions& options) {
  const LinearWeightsProblem problem = check_weights(outputs, inputs, queries, options);
  if (!writes_elements(kLinearWeights, outputs)) return;
  run_on_cpu<kLinearInputs, kLinearOptions>("linear_attention_weights", problem, options, cpu_linear_weights);
}

void linear_attention_statistics(const LinearAttentionStatistics& outputs, const LinearAttentionInputs& inputs,
                                 const LinearAttentionOptions& options) {
  const LinearStatisticsProblem problem = check_linear_statistics(outputs, inputs, options);
  if (!writes_elements(kLinearStatistics, outputs)) return;
  run_on_cpu<kLinearInputs, kLinearOptions>("linear_attention_statistics", problem, options, cpu_linear_statistics);
}

}  // namespace headgate
