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

#include "core/check.hpp"
#include "demo/worked.hpp"
#include "explain/problem.hpp"
#include "explain/solution.hpp"
#include "headgate/attention.hpp"

namespace headgate::demo {
namespace {

using explain::Matrix;
using explain::Solution;
using explain::WorkedProblem;

/// A problem with its published output, row by row.
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

/// Half a unit of the last published decimal, and four roundoffs of the f32 that it was computed in.
double tolerance_of(const Published& problem, double value) {
  return 0.5 * std::pow(10.0, -problem.decimals) + 4.0 * 0x1p-24 * std::abs(value);
}

bool agrees(const Published& problem, const std::vector<double>& actual) {
  return std::equal(actual.begin(), actual.end(), problem.output.begin(), problem.output.end(),
                    [&](double a, double b) { return std::abs(a - b) <= tolerance_of(problem, b); });
}

std::vector<float> to_floats(const Matrix& m) { return {m.values.begin(), m.values.end()}; }

/// The library's f32 output from the solution's Q, K, V and Z; one head.
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

/// Matrices side by side under their names.
class Columns {
 public:
  explicit Columns(int decimals) : decimals_(decimals) {}

  void add(std::string_view name, const Matrix& m) {
    std::vector<std::string> lines{std::string(name)};
    for (std::int64_t i = 0; i < m.rows; ++i) {
      std::string line;
      for (std::int64_t j = 0; j < m.cols; ++j)
        line += fmt::format("{}{:.{}f}", j == 0 ? "" : "  ", m(i, j), decimals_);
      lines.push_back(std::move(line));
    }
    std::size_t width = 0;
    for (const std::string& line : lines) width = std::max(width, line.size());
    if (lines_.size() < lines.size()) lines_.resize(lines.size());
    for (std::size_t n = 0; n < lines_.size(); ++n) {
      lines_[n].resize(start_, ' ');
      lines_[n] += n < lines.size() ? lines[n] : "";
    }
    start_ += width + 4;
  }

  void print() const {
    for (const std::string& line : lines_) fmt::print("     {}\n", line);
  }

 private:
  int decimals_;
  std::size_t start_ = 0;
  std::vector<std::string> lines_;
};

void print_solution(const Solution& solution, int decimals) {
  Columns columns(decimals);
  columns.add("weights", solution.weights.front());
  if (solution.gate) {
    columns.add("attention", solution.attention);
    columns.add("gate", *solution.gate);
    columns.add("gate x attention", solution.gated);
  } else {
    columns.add("attention", solution.gated);
  }
  columns.print();
}

bool show_problem(int number, const Published& problem, const std::string& path, const WorkedProblem& worked) {
  const Solution solution = explain::solve(worked);
  const bool steps = agrees(problem, solution.output().values);
  const bool kernels = agrees(problem, kernel_output(worked, solution));
  fmt::print("\n  {}. {}  ({})\n\n", number, problem.title, path);
  print_solution(solution, problem.decimals);
  fmt::print("\n     the published output to {} decimals: these steps {}, the f32 kernels {}\n", problem.decimals,
             steps ? "ok" : "DIFFER", kernels ? "ok" : "DIFFER");
  return steps && kernels;
}

}  // namespace

bool has_worked_problems(const std::filesystem::path& directory) {
  return std::all_of(published().begin(), published().end(), [&](const Published& problem) {
    std::error_code unreadable;
    return std::filesystem::exists(directory / problem.file, unreadable);
  });
}

bool show_worked_problems(const std::string& directory) {
  std::vector<std::pair<std::string, WorkedProblem>> problems;  // all read before anything is printed
  for (const Published& problem : published()) {
    const std::string path = directory + "/" + problem.file;
    problems.emplace_back(path, explain::read_worked_problem(path));
  }
  fmt::print("Worked problems: gate x softmax(Q K^T / sqrt(D)) V\n");
  bool ok = true;
  for (std::size_t n = 0; n < problems.size(); ++n) {
    const auto& [path, worked] = problems[n];
    ok = show_problem(static_cast<int>(n) + 1, published()[n], path, worked) && ok;
  }
  std::fflush(stdout);
  return ok;
}

}  // namespace headgate::demo
