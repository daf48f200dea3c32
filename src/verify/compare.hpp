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

/// The largest error found, in units of the tolerance, and where.
struct WorstError {
  double ratio = 0.0;
  std::string where;
};

/// One output beside the oracle's answer.
struct Comparison {
  const char* name;
  TensorView actual;
  const std::vector<double>& expected;
  const std::vector<double>& magnitude;
  const std::vector<double>* inherited;   // null: nothing
  const std::vector<double>* like_terms;  // null: nothing
  Tolerance tolerance;
};

/// Describes the problem at hand; asked only where there is something to say.
using Description = std::function<std::string()>;

/// The first element of the outputs that is out of tolerance, or was never written. Absent outputs have none.
std::optional<std::string> first_mismatch(const std::vector<Comparison>& comparisons, const Description& description,
                                          WorstError* worst);

/// What is wrong with bytes written outside the tensor `name`.
std::string spill_text(const std::string& name, const Description& description);

/// What `run` throws, as the message of a mismatch of the function `name`.
template <typename Run>
std::optional<std::string> thrown_by(const char* name, const Description& description, const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return std::string(name) + " threw \"" + error.what() + "\": " + description();
  }
  return std::nullopt;
}

/// Describes a problem by its spec. The problem must outlive the result.
template <class Problem>
Description describing(const Problem& problem) {
  return [&problem] { return describe(problem.spec()); };
}

/// The first mismatch of a problem's outputs, or what was written outside of them.
template <class Problem>
std::optional<std::string> mismatch_in(const std::vector<Comparison>& comparisons, const Problem& problem,
                                       WorstError* worst) {
  if (auto mismatch = first_mismatch(comparisons, describing(problem), worst)) return mismatch;
  if (const auto name = problem.spilled()) return spill_text(*name, describing(problem));
  return std::nullopt;
}

/// Whether written(), which computes the problem and returns the bytes, returns the same with one thread and with
/// three.
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
