// SPDX-License-Identifier: Apache-2.0
// Tests rows that a gate threshold closes: how much accuracy they cost, and that they are not computed. forward_test
// checks open rows on every target.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "library/attention/property.hpp"
#include "library/core/element.hpp"
#include "verify/case.hpp"
#include "verify/oracle/oracle.hpp"

namespace headgate {
namespace {

using verify::Case;
using verify::CaseSpec;
using verify::GateInput;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

CaseSpec gated_spec(GateInput grain, double closed_share) {
  CaseSpec spec;
  spec.B = spec.Hkv = spec.group = 2;
  spec.T = 140;
  spec.S = 150;
  spec.D = 16;
  spec.Dv = 24;
  spec.causality = Causality::causal;
  spec.gate_input = grain;
  spec.closed_share = closed_share;
  return spec;
}

std::vector<double> values_of(const TensorView& view) {
  std::vector<double> values;
  for (std::int64_t n = 0; n < view.numel(); ++n) values.push_back(load_element(view.data, view.dtype, n));
  return values;
}

std::vector<double> y_of(Case& problem, const AttentionOptions& options) {
  problem.poison_outputs();
  AttentionOutputs out = problem.outputs();
  attention_forward(out, problem.inputs(), options);
  return values_of(out.y);
}

/// Returns max |v_j| over the keys that query i sees, of feature d.
double largest_value(const Case& problem, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  const CaseSpec& s = problem.spec();
  double largest = 0.0;
  for (std::int64_t j = 0; j <= std::min(i + s.S - s.T, s.S - 1); ++j) {
    largest = std::max(largest, std::abs(load(problem.inputs().v, b, h / s.group, j, d)));
  }
  return largest;
}

TEST(GateThreshold, Output_ClosedRows_ChangesByAtMostThresholdTimesLargestValue) {
  for (const GateInput grain : {GateInput::headwise, GateInput::elementwise}) {
    for (const GateFn fn : {GateFn::sigmoid, GateFn::silu, GateFn::identity}) {
      CaseSpec spec = gated_spec(grain, 0.6);
      spec.gate_fn = fn;
      Case problem(spec);
      const double threshold = problem.options().gate_threshold;
      const std::vector<double> without = y_of(problem, problem.backward_options());
      const std::vector<double> with = y_of(problem, problem.options());
      double most = 0.0;
      std::size_t at = 0;
      for (std::int64_t b = 0; b < spec.B; ++b) {
        for (std::int64_t h = 0; h < spec.Hq(); ++h) {
          for (std::int64_t i = 0; i < spec.T; ++i) {
            for (std::int64_t d = 0; d < spec.Dv; ++d, ++at) {
              const double bound = threshold * largest_value(problem, b, h, i, d);
              const double error = std::abs(with[at] - without[at]);
              ASSERT_LE(error, bound * (1 + 1e-5) + 1e-6) << b << ' ' << h << ' ' << i << ' ' << d;
              most = std::max(most, error);
            }
          }
        }
      }
      EXPECT_GT(most, 0.0);
    }
  }
}

TEST(GateThreshold, Problem_ShareOfClosedRows_IsTheOneAskedFor) {
  for (const double share : {0.0, 0.25, 0.9, 1.0}) {
    Case problem(gated_spec(GateInput::headwise, share));
    const auto& lse = problem.expected_forward().lse;
    const auto closed = static_cast<double>(std::count(lse.begin(), lse.end(), kInfinity));
    EXPECT_NEAR(closed / static_cast<double>(lse.size()), share, 0.02);
  }
}

/// Tiles whose rows are all open are the same as without a threshold.
TEST(GateThreshold, Output_EveryRowOpen_IsBitwiseIdentical) {
  for (const std::int64_t T : {3, 140}) {
    CaseSpec spec = gated_spec(GateInput::elementwise, 0.0);
    spec.T = T;
    Case problem(spec);
    ASSERT_GT(problem.options().gate_threshold, 0.0);
    EXPECT_EQ(y_of(problem, problem.options()), y_of(problem, problem.backward_options()));
  }
}

TEST(GateThreshold, Row_NaNInItsGate_IsOpen) {
  CaseSpec spec = gated_spec(GateInput::elementwise, 1.0);
  spec.lse = DType::f64;
  Case problem(spec);
  AttentionInputs in = problem.inputs();
  const_cast<float*>(static_cast<const float*>(in.gate.data))[5 * spec.Dv + 3] =
      std::numeric_limits<float>::quiet_NaN();
  const AttentionOutputs out = problem.outputs();
  attention_forward(out, in, problem.options());
  EXPECT_TRUE(std::isnan(load(out.y, 0, 0, 5, 3)));
  EXPECT_TRUE(std::isfinite(load(out.lse, 0, 0, 5, 0)));
  EXPECT_EQ(load(out.y, 0, 0, 4, 3), 0.0);
  EXPECT_EQ(load(out.lse, 0, 0, 4, 0), kInfinity);
}

TEST(GateThreshold, Row_OneNegativeGateOfItsFeatures_IsOpen) {
  CaseSpec spec = gated_spec(GateInput::elementwise, 1.0);
  spec.gate_fn = GateFn::identity;
  spec.lse = DType::f64;
  Case problem(spec);
  AttentionInputs in = problem.inputs();
  const_cast<float*>(static_cast<const float*>(in.gate.data))[5 * spec.Dv + 3] =
      static_cast<float>(-2.0 * problem.options().gate_threshold);
  const AttentionOutputs out = problem.outputs();
  attention_forward(out, in, problem.options());
  EXPECT_NE(load(out.y, 0, 0, 5, 3), 0.0);
  EXPECT_TRUE(std::isfinite(load(out.lse, 0, 0, 5, 0)));
  EXPECT_EQ(load(out.lse, 0, 0, 4, 0), kInfinity);
}

TEST(GateThreshold, Backward_GateThreshold_IsRefused) {
  Case problem(gated_spec(GateInput::headwise, 0.5));
  attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
  EXPECT_THROW(attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(),
                                  problem.backward_options()),
               Error);
}

/// A tensor of whole pages; pages of some heads cannot be read.
class Pages {
 public:
  explicit Pages(const Shape& shape) : shape_(shape) {
    bytes_ = static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]) * sizeof(float);
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(data_, MAP_FAILED);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(data_, bytes_); }

  void copy_from(const ConstTensorView& view) const { std::memcpy(data_, view.data, bytes_); }
  void close_head(std::int64_t h) const {
    const auto head_bytes = static_cast<std::size_t>(shape_[2] * shape_[3]) * sizeof(float);
    ASSERT_EQ(head_bytes % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), 0U);
    ASSERT_EQ(::mprotect(static_cast<char*>(data_) + static_cast<std::size_t>(h) * head_bytes, head_bytes, PROT_NONE),
              0);
  }
  ConstTensorView view() const { return {data_, DType::f32, shape_, contiguous_strides(shape_)}; }

 private:
  Shape shape_;
  std::size_t bytes_ = 0;
  void* data_ = nullptr;
};

/// Few queries and many take different kernels.
TEST(GateThreshold, KeysAndValues_ClosedGroup_AreNotRead) {
  const TargetGuard guard;
  for (const std::int64_t T : {1, 3, 40}) {
    CaseSpec spec;
    spec.Hkv = 4;
    spec.group = 2;
    spec.T = T;
    spec.S = 1024;
    spec.D = spec.Dv = 64;
    spec.gate_input = GateInput::headwise;
    spec.closed_share = 0.5;
    spec.closed_by_group = true;
    spec.threads = 2;
    Case problem(spec);
    const Pages k(problem.inputs().k.shape), v(problem.inputs().v.shape);
    k.copy_from(problem.inputs().k);
    v.copy_from(problem.inputs().v);
    const std::vector<double>& lse = problem.expected_forward().lse;
    std::int64_t closed_groups = 0;
    for (std::int64_t h = 0; h < spec.Hkv; ++h) {
      const auto first = lse.begin() + h * spec.group * T;
      if (std::count(first, first + spec.group * T, kInfinity) != spec.group * T) continue;
      ++closed_groups;
      k.close_head(h);
      v.close_head(h);
    }
    EXPECT_EQ(closed_groups, 2);
    for (const std::string& target : supported_targets()) {
      set_target(target);
      const std::vector<double> y = y_of(problem, problem.options());
      AttentionInputs in = problem.inputs();
      in.k = k.view();
      in.v = v.view();
      problem.poison_outputs();
      attention_forward(problem.outputs(), in, problem.options());
      EXPECT_EQ(values_of(problem.outputs().y), y) << target;
    }
  }
}

}  // namespace
}  // namespace headgate
