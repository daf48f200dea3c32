// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "headgate/attention.hpp"
#include "library/core/words.hpp"
#include "verify/case.hpp"
#include "verify/spec.hpp"

// Makes one call of the library with its own data, for bench to time and demo to show.

namespace headgate::bench {

enum class BenchOp { forward, backward };

/// Returns the number of (query, key) pairs of one head that causality and window allow, or that lists of
/// different keys have. Ignores masks and key lengths. For a packed batch, which must have its lengths given, returns
/// the sum over all sequences.
std::int64_t visible_pairs(const verify::CaseSpec& spec);

/// Returns the FLOPs of one call. Forward: two per multiply-add of q kᵀ and p v over the visible pairs. Backward: 2.5
/// times as many.
double flops_of(const verify::CaseSpec& spec, BenchOp op);

/// Holds a problem in aligned memory, with the tensors that `op` needs. For a backward call the constructor runs the
/// forward call that it depends on.
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
