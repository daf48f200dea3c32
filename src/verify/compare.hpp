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

}  // namespace headgate::verify
