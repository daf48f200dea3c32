// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tool/bench/job.hpp"
#include "tool/bench/workload.hpp"
#include "verify/spec.hpp"

namespace headgate::bench {

/// Returns a factory of jobs that run attention forward or backward on the problem `spec`.
/// The argument of the factory is the number of threads. It replaces spec.threads.
JobFactory attention_job(BenchOp op, const verify::CaseSpec& spec);

/// Returns a factory of jobs that run attention_statistics() for the outputs that `spec` requests.
/// A job reports the FLOPs of a forward pass on the same problem, so that the FLOP rates of both can be compared.
JobFactory statistics_job(const verify::CaseSpec& spec);

}  // namespace headgate::bench
