// SPDX-License-Identifier: Apache-2.0
#include "library/attention/call_report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "headgate/runtime.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/check.hpp"
#include "library/core/targets.hpp"

namespace headgate {
namespace {

std::string tensor_text(const char* name, const ConstTensorView& tensor) {
  return fmt::format("{} {} {}", name, dtype_name(tensor.dtype), shape_text(tensor.shape));
}

/// The other inputs that are there, and the options that are not at their defaults.
std::string arguments_text(const AttentionInputs& inputs, const AttentionOptions& options) {
  std::string text;
  for (const AttentionInput& row : kAttentionInputs) {
    if (!row.traits.required && (inputs.*row.member).present()) text += fmt::format(", {}", row.name);
  }
  for_each_set_option(options, [&text](const auto& row, const std::string& value) {
    text += fmt::format(", {} {}", row.text.name, value);
  });
  return text;
}

const char* target_name(std::int64_t bit) {
  for (const TargetRow& row : kTargetRows) {
    if (row.bit == bit) return row.name;
  }
  return "unknown";
}

}  // namespace

bool is_verbose() {
  static const bool verbose = [] {
    const char* text = std::getenv("HEADGATE_VERBOSE");
    return text != nullptr && *text != '\0' && std::string_view(text) != "0";
  }();
  return verbose;
}

std::string report_line(const char* operation, const Problem& problem, const AttentionOptions& options,
                        const CallReport& report, double milliseconds) {
  std::string text =
      fmt::format("headgate: {}, {} {}, {} {}", operation, report.backend, target_name(problem.context.target),
                  problem.context.threads, problem.context.threads == 1 ? "thread" : "threads");
  text += ", " + tensor_text("q", problem.inputs.q) + ", " + tensor_text("k", problem.inputs.k);
  if (problem.inputs.v.present()) text += ", " + tensor_text("v", problem.inputs.v);
  text += arguments_text(problem.inputs, options);
  for (const CallReport::Group& group : report.groups) {
    text += fmt::format(", route {} × {}", group.route, group.sequences);
    if (!group.declined.empty()) text += " (" + group.declined + ")";
  }
  if (report.groups.empty()) text += ", nothing to compute";
  return text +
         fmt::format(", {:.2f} MiB, {:.3f} ms", static_cast<double>(report.memory_bytes) / (1 << 20), milliseconds);
}

void print_report(const std::string& line) {
  const std::string text = line + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace headgate
