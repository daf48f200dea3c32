// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tool/bench/job.hpp"
#include "tool/bench/workload.hpp"
#include "verify/spec.hpp"

namespace headgate::bench {

/// Returns a factory of jobs that make one forward or backward attention call on the problem `spec`. The factory's
/// argument replaces the number of threads of `spec`.
JobFactory attention_job(BenchOp op, const verify::CaseSpec& spec);

/// Returns a factory of jobs that call attention_statistics once, for the outputs that `spec` requests, after one
/// forward pass. A job counts the FLOPs of the forward pass, so that the ratio of the two rates is the ratio of their
/// times.
JobFactory statistics_job(const verify::CaseSpec& spec);

}  // namespace headgate::bench
