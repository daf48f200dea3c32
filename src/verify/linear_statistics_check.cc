// SPDX-License-Identifier: Apache-2.0
#include "verify/linear_statistics_check.hpp"

#include <algorithm>

#include "library/core/linear_statistics_rows.hpp"
#include "verify/fill.hpp"
#include "verify/layout.hpp"
#include "verify/oracle/linear_statistics.hpp"

namespace headgate::verify {
namespace {

constexpr std::uint64_t kChosenStream = 121;
constexpr std::int64_t kMostChosen = 7;

/// Number of tokens in a partial sum in the compute type. The kernels add the partial sums in f64.
constexpr std::int64_t kSummedTokens = 64;

LinearOutputSizes sizes_of(const LinearCaseSpec& spec, std::int64_t R) {
  return {spec.B, spec.sequences(), spec.Hv, spec.Ho(), spec.T, spec.D, R};
}

/// Returns the number of terms in the longest chain of dependent sums behind an element of an output:
/// - every output: the dot products of one token's forward pass, and a sum over kSummedTokens tokens
/// - outputs with one number per sequence: also a sum over queries
/// - outputs with one number per state: also sums over the decays and over the elements of the state
std::int64_t terms_of(LinearOutputDims of, const LinearCaseSpec& spec) {
  const std::int64_t of_token = (spec.l2_norm ? 3 : 2) * spec.D + kSummedTokens;
  if (of == LinearOutputDims::sequence) return of_token + spec.T;
  return of == LinearOutputDims::state ? of_token + (spec.T + spec.Dv) * spec.D : of_token;
}

/// Returns the rows of the chosen queries from an array with the rows of all queries.
reference::LinearFigureArray chosen_rows(const reference::LinearFigureArray& all, const LinearCaseSpec& spec,
                                         const std::vector<std::int64_t>& chosen, std::int64_t width) {
  reference::LinearFigureArray out;
  for (std::int64_t head = 0; head < spec.B * spec.Ho(); ++head) {
    for (const std::int64_t query : chosen) {
      for (std::int64_t x = 0; x < width; ++x) {
        const auto from = static_cast<std::size_t>((head * spec.T + query) * width + x);
        out.value.push_back(all.value[from]);
        out.magnitude.push_back(all.magnitude[from]);
      }
    }
  }
  return out;
}

}  // namespace

LinearFigures::LinearFigures(const LinearCaseSpec& spec) {
  Random random(spec.seed, kChosenStream);
  const std::int64_t R = spec.T == 0 ? 0 : random.below(kMostChosen + 1);
  for (std::int64_t r = 0; r < R; ++r) chosen_.push_back(random.below(spec.T));
  queries_ =
      inputs_.add("queries", Placement::guarded)
          .place(spec.seed % 2 == 0 ? DType::i32 : DType::i64, {1, 1, 1, R}, strides_of(Layout::bhtd, {1, 1, 1, R}, 0));
  for (std::int64_t r = 0; r < R; ++r) store_integer(queries_, r, chosen_[static_cast<std::size_t>(r)]);
  place(spec, kLinearWeights, weights_);
  place(spec, kLinearStatistics, statistics_);
  poison();
}

template <class Rows, class Struct>
void LinearFigures::place(const LinearCaseSpec& spec, const Rows& rows, Struct& outputs) {
  const LinearOutputSizes sizes = sizes_of(spec, static_cast<std::int64_t>(chosen_.size()));
  std::uint64_t number = spec.seed;
  for (const auto& row : rows) {
    const DType dtype = spec.dtype == DType::f64 || number++ % 3 == 0 ? DType::f64 : DType::f32;
    const Shape shape = sizes.shape(row.dims);
    outputs.*row.member =
        slabs_.add(row.name, Placement::guarded).place(dtype, shape, strides_of(spec.layout, shape, 0));
  }
}

std::optional<std::string> check_linear_statistics_case(LinearCase& problem, const ExpectedLinearFigures& expected,
                                                        const LinearStatisticsKernels& kernels, WorstError* worst) {
  const LinearCaseSpec& spec = problem.spec();
  problem.poison_outputs();
  LinearFigures figures(spec);
  const Description describing = [&problem] { return describe(problem.spec()); };
  if (auto error = thrown_by("linear attention's statistics", describing, [&] {
        kernels.weights(figures.weights(), problem.inputs(), figures.queries(), problem.options());
        kernels.statistics(figures.statistics(), problem.inputs(), problem.options());
      })) {
    return error;
  }
  const reference::LinearFigureArray weights = chosen_rows(expected.rows.weights, spec, figures.chosen(), spec.T);
  const reference::LinearFigureArray state_query =
      chosen_rows(expected.rows.state_query, spec, figures.chosen(), spec.D);
  const auto compare = [&](const char* name, const TensorView& view, LinearOutputDims of,
                           const reference::LinearFigureArray& want) {
    return Comparison{name,
                      view,
                      want.value,
                      want.magnitude,
                      nullptr,
                      nullptr,
                      Tolerance::of(spec.dtype, view.dtype, terms_of(of, spec))};
  };
  using enum LinearOutputDims;
  std::vector<Comparison> comparisons{
      compare("weights", figures.weights().weights, query_and_token, weights),
      compare("state_query", figures.weights().state_query, query_and_feature, state_query)};
  for (std::size_t n = 0; n < kLinearStatistics.size(); ++n) {
    const LinearStatisticsOutput& row = kLinearStatistics[n];
    comparisons.push_back(
        compare(row.name, figures.statistics().*row.member, row.dims, expected.statistics.outputs[n]));
  }
  if (auto mismatch = first_mismatch(comparisons, describing, worst)) return mismatch;
  if (const auto name = figures.spilled()) return spill_text(*name, describing);
  return std::nullopt;
}

}  // namespace headgate::verify
