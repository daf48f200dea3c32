// SPDX-License-Identifier: Apache-2.0
#include "library/attention/call_report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "headgate/runtime.hpp"
#include "library/core/check.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/targets.hpp"

namespace headgate {
namespace {

std::string tensor_text(const char* name, const ConstTensorView& tensor) {
  return fmt::format("{} {} {}", name, dtype_name(tensor.dtype), shape_text(tensor.shape));
}

/// What changes scores, gates and the keys that a query sees.
std::string options_text(const Problem& p) {
  std::string text;
  const auto add = [&text](bool present, const std::string& item) {
    if (present) text += ", " + item;
  };
  const AttentionInputs& in = p.inputs;
  add(p.gate_fn != GateFn::none, fmt::format("gate {} {} {}", p.gate_headwise ? "headwise" : "elementwise",
                                             word_of(p.gate_fn), word_of(p.gate_op)));
  add(p.gate_threshold > 0, fmt::format("gate_threshold {}", p.gate_threshold));
  add(p.window_left >= 0, fmt::format("window_left {}", p.window_left));
  add(p.window_right >= 0, fmt::format("window_right {}", p.window_right));
  add(p.softcap > 0, fmt::format("softcap {}", p.softcap));
  add(p.packed(), fmt::format("packed × {}", p.N));
  add(p.page > 0, fmt::format("pages of {}", p.page));
  add(in.bias.present(), "bias");
  add(in.mask.present(), "mask");
  add(in.key_lengths.present(), "key_lengths");
  add(in.query_offsets.present(), "query_offsets");
  add(in.alibi_slopes.present(), "alibi_slopes");
  add(in.sinks.present(), "sinks");
  add(p.precision == Precision::native16, "native16");
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

std::string report_line(const char* operation, const Problem& problem, const CallReport& report, double milliseconds) {
  std::string text =
      fmt::format("headgate: {}, {} {}, {} {}", operation, report.backend, target_name(problem.context.target),
                  problem.context.threads, problem.context.threads == 1 ? "thread" : "threads");
  text += ", " + tensor_text("q", problem.inputs.q) + ", " + tensor_text("k", problem.inputs.k);
  if (problem.inputs.v.present()) text += ", " + tensor_text("v", problem.inputs.v);
  text += options_text(problem);
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
