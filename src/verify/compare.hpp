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

/// The largest error found, as a multiple of the tolerance, and the output and problem where it occurred.
struct WorstError {
  double ratio = 0.0;
  std::string where;
};

/// An output of the library to compare with the oracle's values.
struct Comparison {
  const char* name;
  TensorView actual;
  const std::vector<double>& expected;
  const std::vector<double>& magnitude;
  const std::vector<double>* inherited;   // bounds of the errors due to rounded inputs (see Backward); null: all 0
  const std::vector<double>* like_terms;  // bounds of the errors of nearly equal terms (LikeTerms); null: all 0
  Tolerance tolerance;
};

/// Function that returns a description of the problem. It is called only for messages.
using Description = std::function<std::string()>;

/// Returns a message for the first output element that is out of tolerance or was never written. Skips absent outputs.
std::optional<std::string> first_mismatch(const std::vector<Comparison>& comparisons, const Description& description,
                                          WorstError* worst);

/// Returns the message that bytes outside the tensor `name` were written.
std::string spill_text(const std::string& name, const Description& description);

/// Calls run(). If it throws, returns a mismatch message for the function `name`, otherwise nullopt.
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

/// Returns the first mismatch of a problem's outputs, or a message if any byte outside them was written.
template <class Problem>
std::optional<std::string> mismatch_in(const std::vector<Comparison>& comparisons, const Problem& problem,
                                       WorstError* worst) {
  if (auto mismatch = first_mismatch(comparisons, describing(problem), worst)) return mismatch;
  if (const auto name = problem.spilled()) return spill_text(*name, describing(problem));
  return std::nullopt;
}

/// `written` computes the problem and returns all bytes of its outputs. Calls it with one thread and with three.
/// Returns a mismatch if the bytes differ.
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
