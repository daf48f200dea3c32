// SPDX-License-Identifier: Apache-2.0
#include "library/call/verbose.hpp"

#include <cstdint>
#include <cstdio>

#include "library/core/check.hpp"
#include "library/core/format.hpp"
#include "library/core/targets.hpp"

namespace headgate {
namespace {

const char* target_name(std::int64_t bit) {
  for (const TargetRow& row : kTargetRows) {
    if (row.bit == bit) return row.name;
  }
  return "unknown";
}

}  // namespace

void print_report(const std::string& line) {
  const std::string text = line + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string call_text(const char* operation, const char* backend, const ExecutionContext& context) {
  return formatted("headgate: {}, {} {}, {} {}", operation, backend, target_name(context.target), context.threads,
                   context.threads == 1 ? "thread" : "threads");
}

std::string tensor_text(const char* name, const ConstTensorView& tensor) {
  return formatted("{} {} {}", name, dtype_name(tensor.dtype), shape_text(tensor.shape));
}

}  // namespace headgate
