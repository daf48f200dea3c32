// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "headgate/attention.hpp"
#include "library/core/check.hpp"
#include "tool/demo/worked.hpp"
#include "tool/explain/problem.hpp"
#include "tool/explain/solution.hpp"

namespace headgate::demo {
namespace {

using explain::Matrix;
using explain::Solution;
using explain::WorkedProblem;

/// A worked problem and its published output, in row-major order.
struct Published {
  const char* file;
  const char* title;
  int decimals;
  std::vector<double> output;
};

const std::array<Published, 4>& published() {
  static const std::array<Published, 4> kPublished{{
      {"gated_two_tokens.json", "Two tokens, the gate half open", 4, {0.3349, 0.1651, 0.1651, 0.3349}},
      {"gated_two_mixed_tokens.json", "Two mixed tokens, a gate of their own", 4, {0.5644, 0.4531, 0.4531, 0.5644}},
      {"gated_three_tokens.json",
       "Three tokens, the gate half open",
       4,
       {0.2355, 0.1322, 0.1322, 0.1322, 0.2355, 0.1322, 0.1322, 0.1322, 0.2355}},
      {"scaled_dot_product.json",
       "Scaled dot product, no gate",
       7,
       {2.0757656, 3.0757656, 4.0757656, 5.0757656, 3.9242342, 4.924234, 5.924234, 6.924234}},
  }};
  return kPublished;
}

/// Returns the tolerance of a published value: half a unit of its last decimal plus four f32 roundoffs.
/// The roundoffs are added because the published values were computed in f32.
double tolerance_of(const Published& problem, double value) {
  return 0.5 * std::pow(10.0, -problem.decimals) + 4.0 * 0x1p-24 * std::abs(value);
}

bool agrees(const Published& problem, const std::vector<double>& actual) {
  return std::equal(actual.begin(), actual.end(), problem.output.begin(), problem.output.end(),
                    [&](double a, double b) { return std::abs(a - b) <= tolerance_of(problem, b); });
}

std::vector<float> to_floats(const Matrix& m) { return {m.values.begin(), m.values.end()}; }

/// Computes the output from the solution's Q, K, V and Z with the library's f32 kernels.
/// The problem must have one head.
std::vector<double> kernel_output(const WorkedProblem& problem, const Solution& solution) {
  require(problem.heads == 1 && problem.kv_heads == 1, "demo: the worked problems have one head, not {}",
          problem.heads);
  const auto view_of = [](const auto& values, const Matrix& m) {
    return make_view(values.data(), {1, 1, m.rows, m.cols});
  };
  const std::vector<float> q = to_floats(solution.Q);  // (T,D)
  const std::vector<float> k = to_floats(solution.K);  // (S,D)
  const std::vector<float> v = to_floats(solution.V);  // (S,Dv)
  std::vector<float> y(solution.gated.values.size());  // (T,Dv)
  AttentionInputs inputs;
  inputs.q = view_of(q, solution.Q);
  inputs.k = view_of(k, solution.K);
  inputs.v = view_of(v, solution.V);
  std::vector<float> z;  // (T,Dv) or (T,1)
  if (solution.gate_logits) {
    z = to_floats(*solution.gate_logits);
    inputs.gate = view_of(std::as_const(z), *solution.gate_logits);
  }
  AttentionOptions options;
  options.causality = problem.causal ? Causality::causal : Causality::none;
  options.gate_fn = problem.gate_fn;
  AttentionOutputs outputs;
  outputs.y = make_view(y.data(), {1, 1, solution.gated.rows, solution.gated.cols});
  attention_forward(outputs, inputs, options);
  return {y.begin(), y.end()};
}

/// Returns the rows of the output as "0.3349 0.1651 | 0.1651 0.3349".
std::string output_text(const Matrix& output, int decimals) {
  std::string out;
  for (std::int64_t i = 0; i < output.rows; ++i) {
    out += i == 0 ? "" : " | ";
    for (std::int64_t j = 0; j < output.cols; ++j) {
      out += fmt::format("{}{:.{}f}", j == 0 ? "" : " ", output(i, j), decimals);
    }
  }
  return out;
}

bool show_problem(const Published& problem, const WorkedProblem& worked) {
  const Solution solution = explain::solve(worked);
  const bool steps = agrees(problem, solution.output().values);
  const bool kernels = agrees(problem, kernel_output(worked, solution));
  const bool ok = steps && kernels;
  fmt::print("     {:<41} {}\n", problem.title, output_text(solution.output(), std::min(problem.decimals, 4)));
  if (!ok) {
    fmt::print("     NOT the published output to {} decimals: step by step {}, the kernels {}\n", problem.decimals,
               steps ? "ok" : "different", kernels ? "ok" : "different");
  }
  return ok;
}

using WorkedProblems = std::vector<std::pair<std::string, WorkedProblem>>;

WorkedProblems read_worked_problems(const std::string& directory) {
  WorkedProblems problems;
  for (const Published& problem : published()) {
    const std::string path = directory + "/" + problem.file;
    problems.emplace_back(path, explain::read_worked_problem(path));
  }
  return problems;
}

}  // namespace

bool has_worked_problems(const std::filesystem::path& directory) {
  return std::all_of(published().begin(), published().end(), [&](const Published& problem) {
    std::error_code unreadable;
    return std::filesystem::exists(directory / problem.file, unreadable);
  });
}

void check_worked_problems(const std::string& directory) { read_worked_problems(directory); }

bool show_worked_problems(const std::string& directory) {
  // Reads all problems first: if one cannot be read, this throws before anything is printed.
  const WorkedProblems problems = read_worked_problems(directory);
  fmt::print("Worked problems: gate x softmax(Q K^T / sqrt(D)) V, row by row\n\n");
  bool ok = true;
  for (std::size_t n = 0; n < problems.size(); ++n) {
    ok = show_problem(published()[n], problems[n].second) && ok;
  }
  if (ok) fmt::print("\n     all as published, worked out step by step and by the f32 kernels\n");
  fmt::print("     every step of one: headgate explain {}\n", problems.front().first);
  std::fflush(stdout);
  return ok;
}

}  // namespace headgate::demo
