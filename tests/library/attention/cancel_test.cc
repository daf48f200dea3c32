// SPDX-License-Identifier: Apache-2.0
// Checks that calls whose context cancels them end, throw Cancelled, and affect no later call.

#include <algorithm>
#include <functional>
#include <vector>

#include "headgate/statistics.hpp"
#include "library/attention/property.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

/// Returns false `patience` times, then always true.
class Canceller {
 public:
  explicit Canceller(std::int64_t patience) : patience_(patience) {}
  const std::function<bool()>* callback() const { return &callback_; }
  std::int64_t asked() const { return asked_; }

 private:
  std::int64_t patience_;
  std::int64_t asked_ = 0;  // checks by the calling thread only
  const std::function<bool()> callback_ = [this] { return ++asked_ > patience_; };
};

constexpr std::int64_t kForEver = std::int64_t{1} << 60;

/// A call that takes a context, and the bytes that it writes.
struct Work {
  const char* name;
  std::function<void(const ExecutionContext&)> call;
  std::function<std::vector<std::uint8_t>()> bits;
};

/// Cancels the call at many of the points at which it checks.
void expect_cancellable(const Work& work, std::int64_t least_questions) {
  work.call({.threads = 1});
  const std::vector<std::uint8_t> expected = work.bits();
  Canceller never(kForEver);
  work.call({.threads = 1, .cancelled = never.callback()});
  EXPECT_TRUE(work.bits() == expected) << work.name;
  EXPECT_GE(never.asked(), least_questions) << work.name;
  const std::int64_t points = std::max<std::int64_t>(2, static_cast<std::int64_t>(problem_runs()) / 5);
  for (const int threads : {1, 2, 3}) {
    for (std::int64_t patience = 0; patience < never.asked(); patience += 1 + never.asked() / points) {
      Canceller canceller(patience);
      bool cancelled = false;
      try {
        work.call({.threads = threads, .cancelled = canceller.callback()});
      } catch (const Cancelled&) {
        cancelled = true;
      }
      // The calling thread may get fewer tasks in parallel than alone.
      EXPECT_EQ(cancelled, canceller.asked() > patience) << work.name << ", " << threads << " threads";
      EXPECT_TRUE(cancelled || threads > 1) << work.name;
      EXPECT_TRUE(cancelled || work.bits() == expected) << work.name;
      EXPECT_LE(canceller.asked(), patience + 1) << work.name << ": asked again after it was cancelled";
    }
    work.call({.threads = threads});
    EXPECT_TRUE(work.bits() == expected) << work.name << ", " << threads << " threads";
  }
}

Work forward_of(verify::Case& problem) {
  return {"forward",
          [&](const ExecutionContext& context) {
            AttentionOptions options = problem.options();
            options.context = context;
            attention_forward(problem.outputs(), problem.inputs(), options);
          },
          [&] { return problem.output_bytes(); }};
}

Work backward_of(verify::Case& problem) {
  attention_forward(problem.saving_outputs(), problem.inputs(), problem.backward_options());
  return {"backward",
          [&](const ExecutionContext& context) {
            AttentionOptions options = problem.backward_options();
            options.context = context;
            attention_backward(problem.gradients(), problem.inputs(), problem.saved(), problem.incoming(), options);
          },
          [&] { return problem.gradient_bytes(); }};
}

CaseSpec spec_of(std::int64_t B, std::int64_t Hkv, std::int64_t T, std::int64_t S) {
  CaseSpec spec;
  spec.B = B;
  spec.Hkv = Hkv;
  spec.group = 2;
  spec.T = T;
  spec.S = S;
  spec.D = spec.Dv = 24;
  spec.gate_input = GateInput::elementwise;
  return spec;
}

TEST(Cancel, LongHeads_Cancelled_EndAtATile) {
  verify::Case problem(spec_of(1, 1, 900, 900));
  expect_cancellable(forward_of(problem), 10);
  expect_cancellable(backward_of(problem), 10);
}

TEST(Cancel, BlocksThatWaitInTurns_Cancelled_DoNotHang) {
  for (const bool over_queries : {false, true}) {
    CaseSpec spec = spec_of(2, 2, 500, 700);
    spec.bias = {true, false, false, over_queries};
    verify::Case problem(spec);
    expect_cancellable(backward_of(problem), 10);
  }
}

TEST(Cancel, HeadsAsTasks_Cancelled_EndAtAHead) {
  verify::Case problem(spec_of(6, 4, 150, 405));
  expect_cancellable(forward_of(problem), 10);
  expect_cancellable(backward_of(problem), 10);
}

TEST(Cancel, SmallHeads_Cancelled_EndBetweenHeads) {
  verify::Case problem(spec_of(40, 4, 20, 30));
  expect_cancellable(forward_of(problem), 10);
  expect_cancellable(backward_of(problem), 10);
}

TEST(Cancel, FewQueries_Cancelled_EndAtASplit) {
  CaseSpec spec = spec_of(8, 2, 1, 3000);
  verify::Case problem(spec);
  expect_cancellable(forward_of(problem), 2);
}

TEST(Cancel, Statistics_Cancelled_EndAtATile) {
  verify::Case problem(spec_of(1, 2, 700, 700));
  attention_forward(problem.saving_outputs(), problem.inputs(), problem.options());
  const ConstTensorView lse = problem.saved().lse;
  std::vector<float> mass(static_cast<std::size_t>(4 * 700));
  AttentionStatistics statistics;
  statistics.key_mass = make_view(mass.data(), Shape{1, 4, 1, 700});
  const Work work{"statistics",
                  [&](const ExecutionContext& context) {
                    AttentionOptions options = problem.options();
                    options.context = context;
                    attention_statistics(statistics, problem.inputs(), lse, {}, options);
                  },
                  [&] {
                    const auto* bytes = reinterpret_cast<const std::uint8_t*>(mass.data());
                    return std::vector<std::uint8_t>(bytes, bytes + mass.size() * sizeof(float));
                  }};
  expect_cancellable(work, 10);
}

}  // namespace
}  // namespace headgate
