// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/bench_job.hpp"
#include "cli/bench_workload.hpp"

namespace headgate::cli {

/// One forward or backward call of the attention operation.
JobFactory attention_job(BenchOp op, const CallShape& shape);

}  // namespace headgate::cli
