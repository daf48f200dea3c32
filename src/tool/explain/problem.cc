// SPDX-License-Identifier: Apache-2.0
#include "tool/explain/problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "library/core/gate_functions.hpp"
#include "models/io/input_file.hpp"
#include "models/io/json.hpp"

namespace headgate::explain {
namespace {

using io::Json;

// Limits on worked problems, which people should be able to read.
// Larger files are rejected before they use memory and time.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 24;
constexpr std::int64_t kMaxDim = 1024;
constexpr std::int64_t kMaxHeads = 64;
constexpr std::int64_t kMaxWeights = std::int64_t{1} << 22;  // Hq·T·S
constexpr int kMaxDepth = 3;                                 // levels of nesting in the JSON: object, matrix, row

std::string size_text(const Matrix& m) { return fmt::format("({},{})", m.rows, m.cols); }

class Reader {
 public:
  explicit Reader(const std::string& path)
      : path_(path), root_(io::parse_json(path, io::read_stream(path, kMaxFileBytes), kMaxDepth)) {
    if (!root_.is_object()) fail("not a JSON object");
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    io::fail(path_, format, std::forward<Args>(args)...);
  }

  bool has(const char* key) const { return root_.contains(key); }

  void require_keys(const std::set<std::string>& keys, const char* form) const {
    for (const auto& item : root_.items()) {
      if (!keys.contains(item.key()))
        fail("unknown key \"{}\" in a problem with \"{}\"", io::printable(item.key()), form);
    }
  }

  std::optional<Matrix> optional_matrix(const char* key) const {
    return has(key) ? std::optional(matrix(key)) : std::nullopt;
  }

  Matrix matrix(const char* key) const {
    const Json& rows = get(key);
    if (!rows.is_array() || rows.empty()) fail("{} is not a matrix: nested arrays of numbers, [[...], ...]", key);
    Matrix m;
    m.rows = std::ssize(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Json& row = rows[i];
      if (!row.is_array() || row.empty()) fail("{} row {} is not an array of numbers", key, i);
      if (i == 0) m.cols = std::ssize(row);
      if (m.rows > kMaxDim || m.cols > kMaxDim) {
        fail("{} is {}; at most {} rows and columns are read", key, size_text(m), kMaxDim);
      }
      if (std::ssize(row) != m.cols) {
        fail("{} row {} has {} numbers, row 0 has {}", key, i, row.size(), m.cols);
      }
      for (std::size_t j = 0; j < row.size(); ++j) {
        if (!row[j].is_number()) fail("{} row {} column {} is not a number", key, i, j);
        m.values.push_back(row[j].get<double>());
        if (!std::isfinite(m.values.back())) fail("{} row {} column {} is not finite", key, i, j);
      }
    }
    return m;
  }

  std::int64_t count(const char* key, std::int64_t otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = get(key);
    if (!value.is_number_integer() || value < 1 || value > kMaxHeads) {
      fail("{} is {}, not a whole number from 1 to {}", key, io::printable(value.dump(-1, ' ', true)), kMaxHeads);
    }
    return value.get<std::int64_t>();
  }

  bool boolean(const char* key) const {
    if (!has(key)) return false;
    if (!get(key).is_boolean()) fail("{} is neither true nor false", key);
    return get(key).get<bool>();
  }

  std::string string(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    if (!get(key).is_string()) fail("{} is not a string", key);
    return get(key).get<std::string>();
  }

 private:
  const Json& get(const char* key) const {
    if (!has(key)) fail("\"{}\" is missing", key);
    return root_.at(key);
  }

  const std::string& path_;
  Json root_;
};

void check_inner(const Reader& in, const WorkedProblem& p, const char* key, const std::optional<Matrix>& w) {
  if (w && w->rows != p.X->cols)
    in.fail("{} is {}, but X is {}: inner sizes differ", key, size_text(*w), size_text(*p.X));
}

/// Holds the sizes of Q (T,Hq·D), K (S,Hkv·D) and V (S,Hkv·Dv). q, k and v are matrix names for error messages: "Q",
/// "K" and "V", or "W_q", "W_k" and "W_v".
struct Sizes {
  std::int64_t T, S, q_cols, k_cols, v_cols;
  const char *q, *k, *v;
};

void check_heads(const Reader& in, const WorkedProblem& p, const Sizes& s) {
  if (p.heads % p.kv_heads != 0) in.fail("heads is {}, not a multiple of kv_heads, {}", p.heads, p.kv_heads);
  if (s.q_cols % p.heads != 0) in.fail("{} has {} columns, which {} heads do not divide", s.q, s.q_cols, p.heads);
  const std::int64_t D = s.q_cols / p.heads;
  if (s.k_cols != p.kv_heads * D) {
    in.fail("{} has {} columns, but {} has {}: with heads {} and kv_heads {} it needs {}", s.k, s.k_cols, s.q, s.q_cols,
            p.heads, p.kv_heads, p.kv_heads * D);
  }
  if (s.v_cols % p.kv_heads != 0)
    in.fail("{} has {} columns, which {} kv_heads do not divide", s.v, s.v_cols, p.kv_heads);
  const std::int64_t Dv = s.v_cols / p.kv_heads;
  if (D > kMaxHeadDim || Dv > kMaxHeadDim) in.fail("head dim is {} and {}; at most {} is read", D, Dv, kMaxHeadDim);
  if (p.heads * s.T * s.S > kMaxWeights) {
    in.fail("{} heads of {} x {} weights; at most {} in all are read", p.heads, s.T, s.S, kMaxWeights);
  }
  const std::int64_t gate_cols = p.gate_headwise ? p.heads : p.heads * Dv;
  const char* grain = p.gate_headwise ? "headwise" : "elementwise";
  if (p.W_g && p.W_g->cols != gate_cols) {
    in.fail("W_g is {}, but a gate that is {} needs {} columns", size_text(*p.W_g), grain, gate_cols);
  }
  if (p.Z && (p.Z->rows != s.T || p.Z->cols != gate_cols)) {
    in.fail("Z is {}, but a gate that is {} needs ({},{})", size_text(*p.Z), grain, s.T, gate_cols);
  }
  if (p.W_o && p.W_o->rows != p.heads * Dv) {
    in.fail("W_o is {}, but the heads' outputs side by side have {} columns", size_text(*p.W_o), p.heads * Dv);
  }
}

void read_options(const Reader& in, WorkedProblem& p) {
  p.heads = in.count("heads", 1);
  p.kv_heads = in.count("kv_heads", p.heads);
  p.causal = in.boolean("causal");
  const std::string fn = in.string("gate_fn", "sigmoid");
  const auto gate_fn = find_word<GateFn>(fn);
  if (!gate_fn) in.fail("gate_fn is \"{}\", not one of {}", io::printable(fn), list_words<GateFn>());
  p.gate_fn = *gate_fn;
  const std::string grain = in.string("gate_grain", "elementwise");
  if (grain != "elementwise" && grain != "headwise") {
    in.fail("gate_grain is \"{}\", not one of elementwise, headwise", io::printable(grain));
  }
  p.gate_headwise = grain == "headwise";
}

void read_from_x(const Reader& in, WorkedProblem& p) {
  in.require_keys({"X", "W_q", "W_k", "W_v", "W_g", "W_o", "heads", "kv_heads", "causal", "gate_fn", "gate_grain"},
                  "X");
  p.X = in.matrix("X");
  p.W_q = in.matrix("W_q");
  p.W_k = in.matrix("W_k");
  p.W_v = in.matrix("W_v");
  if (p.gate_fn != GateFn::none) p.W_g = in.matrix("W_g");
  check_inner(in, p, "W_q", p.W_q);
  check_inner(in, p, "W_k", p.W_k);
  check_inner(in, p, "W_v", p.W_v);
  check_inner(in, p, "W_g", p.W_g);
  check_heads(in, p, {p.X->rows, p.X->rows, p.W_q->cols, p.W_k->cols, p.W_v->cols, "W_q", "W_k", "W_v"});
}

void read_from_q(const Reader& in, WorkedProblem& p) {
  in.require_keys({"Q", "K", "V", "Z", "W_o", "heads", "kv_heads", "causal", "gate_fn", "gate_grain"}, "Q");
  p.Q = in.matrix("Q");
  p.K = in.matrix("K");
  p.V = in.matrix("V");
  if (p.gate_fn != GateFn::none) p.Z = in.optional_matrix("Z");
  if (!in.has("Z") && p.gate_fn != GateFn::none) {
    for (const char* key : {"gate_fn", "gate_grain"}) {
      if (in.has(key)) in.fail("{} is of a gate, whose logits \"Z\" are missing", key);
    }
  }
  if (p.K->rows != p.V->rows) in.fail("K is {}, but V is {}: rows differ", size_text(*p.K), size_text(*p.V));
  check_heads(in, p, {p.Q->rows, p.K->rows, p.Q->cols, p.K->cols, p.V->cols, "Q", "K", "V"});
}

}  // namespace

WorkedProblem read_worked_problem(const std::string& path) {
  const Reader in(path);
  WorkedProblem problem;
  read_options(in, problem);
  problem.W_o = in.optional_matrix("W_o");
  if (in.has("X")) {
    read_from_x(in, problem);
  } else if (in.has("Q")) {
    read_from_q(in, problem);
  } else {
    in.fail("neither \"X\" nor \"Q\" is given");
  }
  return problem;
}

}  // namespace headgate::explain
