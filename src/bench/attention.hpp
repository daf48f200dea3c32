// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/job.hpp"
#include "bench/workload.hpp"

namespace headgate::bench {

/// One forward or backward call of the attention operation.
JobFactory attention_job(BenchOp op, const CallShape& shape);

}  // namespace headgate::bench
