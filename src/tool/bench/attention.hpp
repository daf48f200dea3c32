// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tool/bench/job.hpp"
#include "tool/bench/workload.hpp"
#include "verify/spec.hpp"

namespace headgate::bench {

/// Makes one forward or backward call of attention on the problem that `spec` describes, except for its number of
/// threads.
JobFactory attention_job(BenchOp op, const verify::CaseSpec& spec);

/// Makes one call of attention_statistics on the log-sum-exp of a forward pass, for the outputs that the spec asks for.
/// It counts the FLOPs of the forward pass, so that the ratio of the two rates is the ratio of their times.
JobFactory statistics_job(const verify::CaseSpec& spec);

}  // namespace headgate::bench
