// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "headgate/attention.hpp"
#include "library/core/words.hpp"
#include "verify/case.hpp"
#include "verify/spec.hpp"

// Runs one attention call on generated data. `headgate bench` and `headgate demo` time such calls.

namespace headgate::bench {

enum class BenchOp { forward, backward };

/// Returns the number of visible (query, key) pairs in one head, summed over the sequences of a packed batch.
/// - With key_indices, counts the keys in the lists, which must not repeat keys.
/// - Without key_indices, counts the keys that causality and window allow.
/// Ignores masks and key lengths. A packed batch requires spec.packed_queries and spec.packed_keys.
std::int64_t visible_pairs(const verify::CaseSpec& spec);

/// Returns the FLOPs of one call.
/// A forward call counts 2 per multiply-add of q kᵀ and of weights times v, over visible pairs only.
/// A backward call counts 2.5 times as many.
double flops_of(const verify::CaseSpec& spec, BenchOp op);

/// Holds a problem in aligned memory, with the tensors that `op` needs.
/// If `op` is backward, the constructor also runs the forward call, whose outputs the backward call reads.
class Workload {
 public:
  Workload(const verify::CaseSpec& spec, BenchOp op);

  void forward() const { attention_forward(problem_.outputs(), problem_.inputs(), problem_.options()); }
  void backward() const;
  void run() const { op_ == BenchOp::forward ? forward() : backward(); }

  const verify::Case& problem() const { return problem_; }

 private:
  BenchOp op_;
  verify::Case problem_;
};

}  // namespace headgate::bench

namespace headgate {

template <>
struct Words<bench::BenchOp> {
  static constexpr std::array<Word<bench::BenchOp>, 2> kAll{
      {{bench::BenchOp::forward, "forward"}, {bench::BenchOp::backward, "backward"}}};
};

}  // namespace headgate
