// SPDX-License-Identifier: Apache-2.0
#include "attention/backend.hpp"

#include "attention/cpu/kernels.hpp"

namespace headgate {

const Backend kCpuBackend{"cpu", [](const Problem& /*problem*/) -> const char* { return nullptr; }, cpu_forward,
                          cpu_backward, cpu_statistics};

}  // namespace headgate
