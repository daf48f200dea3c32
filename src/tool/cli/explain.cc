// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>

#include "library/core/gate_functions.hpp"
#include "tool/cli/json_option.hpp"
#include "tool/cli/verbs.hpp"
#include "tool/console/table.hpp"
#include "tool/explain/problem.hpp"
#include "tool/explain/solution.hpp"
#include "tool/explain/text.hpp"

namespace headgate::cli {
namespace {

constexpr int kMaxDecimals = 17;  // with so many decimals, texts of numbers from 0.1 on give the same doubles

struct ExplainOptions {
  std::string file;
  int decimals = 4;
  bool json = false;
};

/// Formats the explanation of a JSON key for --help: the key and its meaning, wrapped at 80 columns.
std::string key_text(const std::string& key, const std::string& meaning) {
  constexpr std::size_t kIndent = 18;
  constexpr std::size_t kColumns = 80;
  return fmt::format("    {:<{}}{}\n", '"' + key + '"', kIndent - 4,
                     console::wrapped_words(meaning, kColumns, kIndent, kIndent));
}

int run_explain(const ExplainOptions& options) {
  const explain::WorkedProblem problem = explain::read_worked_problem(options.file);
  const explain::Solution solution = explain::solve(problem);
  const std::string text = options.json ? explain::json_text(solution, options.decimals)
                                        : explain::page_text(problem, solution, options.decimals);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kSuccess;
}

}  // namespace

Verb add_explain(CommandLine& line) {
  VerbOptions verb = line.add_verb(
      "explain",
      "Solve a small attention problem step by step\n\n"
      "Reads a problem from FILE.json and prints every step of its solution: projections, scores, "
      "scaled scores, softmax weights, attention output, gate, gated output, each a labelled matrix, computed in f64.");
  auto options = std::make_shared<ExplainOptions>();
  verb.argument("FILE.json", options->file, "The problem: one JSON object, described below");
  verb.value("--decimals", options->decimals, "N", "Digits after the point, 0 to 17 (default 4)")
      .range(0, kMaxDecimals);
  declare_json(
      verb, options->json,
      "one object, with the keys Q K V scores weights attention gate output that apply, rounded to --decimals,");
  verb.footer(
      "The problem:\n"
      "  {\"X\": [[...], ...], \"W_q\": ..., \"W_k\": ..., \"W_v\": ..., \"W_g\": ...}   or\n"
      "  {\"Q\": [[...], ...], \"K\": ..., \"V\": ..., \"Z\": ...}, Z (gate logits) optional\n"
      "  Matrices are nested arrays, row by row; heads lie side by side in columns:\n"
      "    X (T,C)  W_q (C,heads*D)  W_k (C,kv_heads*D)  W_v (C,kv_heads*Dv)\n"
      "    Q (T,heads*D)  K (S,kv_heads*D)  V (S,kv_heads*Dv)\n"
      "    W_g (C,N) and Z (T,N), N = heads*Dv elementwise, heads headwise\n"
      "  Optional keys, in both forms:\n"
      "    \"W_o\"         (heads*Dv,C') output projection\n"
      "    \"heads\"       query heads (default 1)\n"
      "    \"kv_heads\"    key and value heads, a divisor of heads (default heads)\n"
      "    \"causal\"      true: query i sees key j only if j <= i + S - T\n" +
      key_text("gate_fn", "one of " + list_words<GateFn>() + " (default sigmoid; with none, W_g may be absent)") +
      "    \"gate_grain\"  elementwise (default) or headwise\n"
      "\n"
      "JSON output:\n"
      "  scores are Q K^T before scaling. scores and weights are matrices with one\n"
      "  head, arrays of matrices with more. output is the last step.\n"
      "\n"
      "Examples:\n"
      "  headgate explain examples/gated_two_tokens.json\n"
      "  headgate explain --json --decimals 8 examples/scaled_dot_product.json");
  return {"explain", [options] { return run_explain(*options); }};
}

}  // namespace headgate::cli
