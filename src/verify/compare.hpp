// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headgate/tensor.hpp"
#include "verify/tolerance.hpp"

namespace headgate::verify {

/// The largest error found, in units of the tolerance, with the output and the problem where it occurred.
struct WorstError {
  double ratio = 0.0;
  std::string where;
};

/// One output of the library and the oracle's values for it.
struct Comparison {
  const char* name;
  TensorView actual;
  const std::vector<double>& expected;
  const std::vector<double>& magnitude;
  const std::vector<double>* inherited;   // null: no inherited errors
  const std::vector<double>* like_terms;  // null: no like terms
  Tolerance tolerance;
};

/// Returns a text that describes the problem. Called only when a message needs it.
using Description = std::function<std::string()>;

/// Returns the first output element that is out of tolerance or was never written. Absent outputs are skipped.
std::optional<std::string> first_mismatch(const std::vector<Comparison>& comparisons, const Description& description,
                                          WorstError* worst);

/// Returns the message for bytes written outside the tensor `name`.
std::string spill_text(const std::string& name, const Description& description);

/// Calls run(). Returns a mismatch message for the function `name` if it throws, otherwise nullopt.
template <typename Run>
std::optional<std::string> thrown_by(const char* name, const Description& description, const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return std::string(name) + " threw \"" + error.what() + "\": " + description();
  }
  return std::nullopt;
}

/// Returns a Description that prints the problem's spec. The problem must outlive the result.
template <class Problem>
Description describing(const Problem& problem) {
  return [&problem] { return describe(problem.spec()); };
}

/// Returns the first mismatch of a problem's outputs, or a message if bytes outside them were written.
template <class Problem>
std::optional<std::string> mismatch_in(const std::vector<Comparison>& comparisons, const Problem& problem,
                                       WorstError* worst) {
  if (auto mismatch = first_mismatch(comparisons, describing(problem), worst)) return mismatch;
  if (const auto name = problem.spilled()) return spill_text(*name, describing(problem));
  return std::nullopt;
}

/// Calls written(), which computes the problem and returns the written bytes, with one thread and with three. Returns a
/// mismatch if the bytes differ.
template <class Problem, class Written>
std::optional<std::string> thread_mismatch(Problem& problem, const Written& written) {
  const auto bytes_with = [&](int threads) {
    problem.options().context.threads = threads;
    return written();
  };
  const bool same = bytes_with(1) == bytes_with(3);
  problem.options().context.threads = problem.spec().threads;
  if (same) return std::nullopt;
  return "1 thread and 3 threads differ: " + describe(problem.spec());
}

}  // namespace headgate::verify
