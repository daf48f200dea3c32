// SPDX-License-Identifier: Apache-2.0
#include "tool/explain/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "library/core/gate_functions.hpp"

namespace headgate::explain {
namespace {

/// Returns x rounded to `decimals` digits after the point. Zero has no minus sign, even if x is negative.
std::string rounded(double x, int decimals) {
  std::string text = fmt::format("{:.{}f}", x, decimals);
  const bool zero = text.find_first_not_of("-0.") == std::string::npos;
  if (zero && text.front() == '-') text.erase(0, 1);
  return text;
}

/// Returns x rounded to `decimals` digits after the point, the number that rounded() formats as text. Without
/// `decimals`, returns x. Zero has no minus sign.
double rounded_number(double x, std::optional<int> decimals) {
  if (!decimals) return x + 0.0;
  const std::string text = rounded(x, *decimals);
  double read = x;
  std::from_chars(text.data(), text.data() + text.size(), read);  // strtod() would depend on the locale
  return read;
}

nlohmann::ordered_json to_json(const Matrix& m, std::optional<int> decimals) {
  auto rows = nlohmann::ordered_json::array();
  for (std::int64_t i = 0; i < m.rows; ++i) {
    auto row = nlohmann::ordered_json::array();
    for (std::int64_t j = 0; j < m.cols; ++j) row.push_back(rounded_number(m(i, j), decimals));
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Returns an array with one matrix per head, or the matrix itself if there is one head.
nlohmann::ordered_json to_json(const std::vector<Matrix>& heads, std::optional<int> decimals) {
  if (heads.size() == 1) return to_json(heads[0], decimals);
  auto matrices = nlohmann::ordered_json::array();
  for (const Matrix& m : heads) matrices.push_back(to_json(m, decimals));
  return matrices;
}

class Page {
 public:
  Page(const WorkedProblem& problem, const Solution& solution, int decimals)
      : p_(problem), s_(solution), decimals_(decimals) {}

  std::string text() {
    given();
    projections();
    for (std::int64_t h = 0; h < p_.heads; ++h) attention(h);
    if (p_.heads > 1) {
      step("Heads side by side");
      matrix("attention", s_.attention);
    }
    gate();
    if (s_.projected) {
      step("Output projection");
      matrix(s_.gate ? "output = gated · W_o" : "output = attention · W_o", *s_.projected);
    }
    return out_;
  }

 private:
  void given() {
    out_ += fmt::format("Queries T = {}, keys S = {}, head dim D = {}", s_.Q.rows, s_.K.rows, s_.head_dim);
    if (p_.heads > 1) out_ += fmt::format(", heads {}, key/value heads {}", p_.heads, p_.kv_heads);
    if (p_.causal) out_ += ", causal";
    out_ += '\n';
  }

  void projections() {
    if (p_.X) {
      step("Projections");
      matrix("Q = X · W_q", s_.Q);
      matrix("K = X · W_k", s_.K);
      matrix("V = X · W_v", s_.V);
    } else {
      step("Given");
      matrix("Q", s_.Q);
      matrix("K", s_.K);
      matrix("V", s_.V);
    }
  }

  void attention(std::int64_t h) {
    const std::string where = p_.heads > 1 ? fmt::format(", head {}", h) : "";
    step("Scores" + where);
    matrix("scores = Q · Kᵀ", s_.scores[h]);
    step("Scaled scores" + where);
    matrix(fmt::format("scaled scores = scores / √{}{}", s_.head_dim, p_.causal ? ", −∞ for a later key" : ""),
           s_.scaled_scores[h]);
    step("Attention weights" + where);
    matrix("weights = softmax(scaled scores), each row", s_.weights[h]);
    step("Attention output" + where);
    matrix("attention = weights · V", p_.heads > 1 ? head_columns(s_.attention, h) : s_.attention);
  }

  void gate() {
    if (!s_.gate) return;
    step("Gate");
    matrix(p_.X ? "Z = X · W_g" : "Z", *s_.gate_logits);
    matrix(fmt::format("G = {}(Z){}", word_of(p_.gate_fn), p_.gate_headwise ? ", a column for each head" : ""),
           *s_.gate);
    step("Gated output");
    matrix(fmt::format("{} = G ∘ attention", s_.projected ? "gated" : "output"), s_.gated);
  }

  Matrix head_columns(const Matrix& m, std::int64_t h) const {
    const std::int64_t dim = m.cols / p_.heads;
    Matrix part{m.rows, dim, {}};
    for (std::int64_t i = 0; i < m.rows; ++i) {
      for (std::int64_t d = 0; d < dim; ++d) part.values.push_back(m(i, h * dim + d));
    }
    return part;
  }

  void step(const std::string& title) { out_ += fmt::format("\nStep {}. {}\n", ++step_, title); }

  void matrix(const std::string& label, const Matrix& m) {
    std::vector<std::string> cells;
    std::size_t width = 0;
    for (const double x : m.values) {
      cells.push_back(rounded(x, decimals_));
      width = std::max(width, cells.back().size());
    }
    out_ += fmt::format("\n  {}  ({}×{})\n", label, m.rows, m.cols);
    for (std::int64_t i = 0; i < std::ssize(cells); ++i) {
      const bool starts = i % m.cols == 0;
      const bool ends = (i + 1) % m.cols == 0;
      out_ += fmt::format("{}{:>{}}{}", starts ? "    [ " : "  ", cells[i], width, ends ? " ]\n" : "");
    }
  }

  const WorkedProblem& p_;
  const Solution& s_;
  int decimals_;
  int step_ = 0;
  std::string out_;
};

}  // namespace

std::string page_text(const WorkedProblem& problem, const Solution& solution, int decimals) {
  return Page(problem, solution, decimals).text();
}

std::string json_text(const Solution& s, std::optional<int> decimals) {
  std::string out;
  const auto add = [&out](const char* key, const nlohmann::ordered_json& value) {
    out += fmt::format("{}\"{}\": {}", out.empty() ? "{" : ",\n ", key, value.dump());
  };
  add("Q", to_json(s.Q, decimals));
  add("K", to_json(s.K, decimals));
  add("V", to_json(s.V, decimals));
  add("scores", to_json(s.scores, decimals));
  add("weights", to_json(s.weights, decimals));
  add("attention", to_json(s.attention, decimals));
  if (s.gate) add("gate", to_json(*s.gate, decimals));
  add("output", to_json(s.output(), decimals));
  return out + "}\n";
}

}  // namespace headgate::explain
