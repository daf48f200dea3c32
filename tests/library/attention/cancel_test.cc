// SPDX-License-Identifier: Apache-2.0
// Checks that calls whose context cancels them end, throw Cancelled, and affect no later call; and that a call may be
// made within another's callback, and within loops of OpenMP.

#include <array>
#include <functional>
#include <vector>

#include "headgate/merge.hpp"
#include "headgate/statistics.hpp"
#include "library/attention/property.hpp"
#include "support/cancellable.hpp"

namespace headgate {
namespace {

using verify::CaseSpec;
using verify::GateInput;

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

std::vector<std::uint8_t> bytes_of(const std::vector<float>& numbers) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(numbers.data());
  return {bytes, bytes + numbers.size() * sizeof(float)};
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

TEST(Cancel, ListsOfKeys_Cancelled_EndAtARowOrABlock) {
  for (const std::int64_t T : {2, 200}) {  // threads share the blocks of few rows
    CaseSpec spec = spec_of(1, 2, T, 3000);
    spec.key_indices = DType::i32;
    spec.list_entries = 800;
    verify::Case problem(spec);
    expect_cancellable(forward_of(problem), 2);
    expect_cancellable(backward_of(problem), 2);
  }
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
                  [&] { return bytes_of(mass); }};
  expect_cancellable(work, 10);
}

TEST(Cancel, Merge_Cancelled_EndsBetweenRows) {
  constexpr Shape kShape{1, 2, 400, 24};
  std::vector<float> attn(2 * 400 * 24, 0.5F), lse(2 * 400, 1.0F), written(attn.size());
  const ConstTensorView rows = make_view(attn.data(), kShape);
  const MergePart part{rows, make_view(lse.data(), Shape{1, 2, 400, 1})};
  const std::array<MergePart, 2> parts{part, part};
  AttentionIncoming incoming;
  incoming.dy = rows;
  AttentionOptions options;
  const auto run_backward = [&](const ExecutionContext& context) {
    options.context = context;
    const std::array<MergePartGradients, 2> gradients{MergePartGradients{make_view(written.data(), kShape), {}}};
    attention_merge_backward(gradients, {}, parts, {}, incoming, options);
  };
  const auto run_forward = [&](const ExecutionContext& context) {
    options.context = context;
    AttentionOutputs outputs;
    outputs.y = make_view(written.data(), kShape);
    attention_merge(outputs, parts, {}, options);
  };
  expect_cancellable({"merge", run_forward, [&] { return bytes_of(written); }}, 10);
  expect_cancellable({"merge backward", run_backward, [&] { return bytes_of(written); }}, 10);
}

// The other threads may take every task.
TEST(Cancel, CallbackThatIsAlwaysTrue_AnyThreads_CancelsEachCall) {
  verify::Case problem(spec_of(1, 1, 64, 64));
  const Work forward = forward_of(problem), backward = backward_of(problem);
  for (int n = 0; n < 200; ++n) {
    for (const Work* work : {&forward, &backward}) {
      Canceller canceller(0);
      EXPECT_THROW(work->call({.threads = 2, .cancelled = canceller.callback()}), Cancelled) << work->name;
      EXPECT_EQ(canceller.asked(), 1);
    }
  }
}

TEST(Cancel, EmptyCallback_IsNone) {
  verify::Case problem(spec_of(1, 1, 64, 64));
  const std::function<bool()> empty;
  for (const Work& work : {forward_of(problem), backward_of(problem)}) {
    EXPECT_NO_THROW(work.call({.threads = 2, .cancelled = &empty})) << work.name;
  }
}

/// The outputs of a call whose progress callback makes calls of its own.
std::vector<std::uint8_t> outputs_with_calls_within(verify::Case& problem, verify::Case& inner, int threads) {
  const std::function<bool()> call_within = [&inner] {
    attention_forward(inner.outputs(), inner.inputs(), inner.options());
    attention_forward(inner.saving_outputs(), inner.inputs(), inner.backward_options());
    attention_backward(inner.gradients(), inner.inputs(), inner.saved(), inner.incoming(), inner.backward_options());
    return false;
  };
  AttentionOptions options = problem.options();
  options.context.threads = threads;
  options.context.cancelled = &call_within;
  problem.poison_outputs();
  attention_forward(problem.outputs(), problem.inputs(), options);
  return problem.output_bytes();
}

TEST(Cancel, CallWithinACallback_LeavesTheCallAsItIs) {
  for (const CaseSpec& spec : {spec_of(1, 1, 900, 900), spec_of(40, 4, 20, 30), spec_of(8, 2, 1, 3000)}) {
    verify::Case problem(spec);
    verify::Case inner(spec_of(1, 1, 30, 40));
    problem.poison_outputs();
    attention_forward(problem.outputs(), problem.inputs(), problem.options());
    const std::vector<std::uint8_t> expected = problem.output_bytes();
    for (const int threads : {1, 2}) {
      inner.options().context.threads = 3 - threads;
      EXPECT_TRUE(outputs_with_calls_within(problem, inner, threads) == expected) << describe(spec) << threads;
    }
  }
}

// OpenMP gives a loop outside of a parallel region to a team of one.
TEST(Cancel, CallsWithinLoopsOfOpenMP_ComputeAsOthers) {
  verify::Case problem(spec_of(1, 2, 40, 50));
  attention_forward(problem.outputs(), problem.inputs(), problem.options());
  const std::vector<std::uint8_t> expected = problem.output_bytes();
  int same = 0, visits = 0;
#pragma omp for schedule(dynamic, 1)
  for (int n = 0; n < 6; ++n) {
    problem.options().context.threads = 1 + n % 2;
    problem.poison_outputs();
    attention_forward(problem.outputs(), problem.inputs(), problem.options());
    same += problem.output_bytes() == expected ? 1 : 0;
    ++visits;
  }
  EXPECT_EQ(visits, 6);
  EXPECT_EQ(same, 6);
}

}  // namespace
}  // namespace headgate
