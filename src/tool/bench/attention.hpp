// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tool/bench/job.hpp"
#include "tool/bench/workload.hpp"
#include "verify/spec.hpp"

namespace headgate::bench {

/// One forward or backward call of the attention operation on the problem that `spec` describes, but for its number of
/// threads.
JobFactory attention_job(BenchOp op, const verify::CaseSpec& spec);

/// One call of attention_statistics on the log-sum-exp of a forward pass, for the outputs that the spec asks for. Its
/// FLOPs are those of the forward pass, so that the ratio of the two rates is that of their times.
JobFactory statistics_job(const verify::CaseSpec& spec);

}  // namespace headgate::bench
