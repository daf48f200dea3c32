// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "library/call/live_threads.hpp"
#include "library/core/format.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/rows.hpp"
#include "library/core/stopwatch.hpp"
#include "library/core/verbosity.hpp"

// Prints one line per call to stderr if is_verbose().

namespace headgate {

/// Writes the line and a line feed to stderr in one operation, so that lines of several threads do not mix.
void print_report(const std::string& line);

/// Returns the beginning of a report, for example "headgate: attention_forward, cpu avx3, 2 threads".
std::string call_text(const char* operation, const char* backend, const ExecutionContext& context);

/// Describes a tensor, for example "q f32 (1,8,512,64)".
std::string tensor_text(const char* name, const ConstTensorView& tensor);

/// Lists a call's arguments, for example ", q f32 (1,8,512,64), …, gate, causality causal". Lists required inputs with
/// their shapes, other present inputs by name, and options that differ from their defaults.
template <const auto& kInputs, const auto& kOptions, class Inputs, class Options>
std::string arguments_text(const Inputs& inputs, const Options& options) {
  std::string text;
  for (const auto& row : kInputs) {
    const ConstTensorView& tensor = inputs.*row.member;
    if (tensor.present()) text += ", " + (row.traits.required ? tensor_text(row.name, tensor) : std::string(row.name));
  }
  for_each_set_option<kOptions, Options>(options, [&text](const auto& row, const std::string& value) {
    text += formatted(", {} {}", row.text.name, value);
  });
  return text;
}

/// Runs the kernel of an operation whose only backend is "cpu", through run_on_live_threads(). Then prints a report if
/// is_verbose(). The report ends with `note` and the time. Prints nothing if the kernel throws.
template <const auto& kInputs, const auto& kOptions, class Problem, class Options>
void run_on_cpu(const char* operation, const Problem& problem, const Options& options, void (&kernel)(const Problem&),
                const std::string& note = {}) {
  const auto run = [&] { run_on_live_threads(problem.context.threads, [&] { kernel(problem); }); };
  if (!is_verbose()) return run();
  const Stopwatch watch;
  run();
  const double milliseconds = watch.milliseconds();
  print_report(formatted("{}{}{}, {:.3f} ms", call_text(operation, "cpu", problem.context),
                         arguments_text<kInputs, kOptions>(problem.inputs, options), note, milliseconds));
}

}  // namespace headgate
