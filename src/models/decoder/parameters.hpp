// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/config.hpp"
#include "models/decoder/weights.hpp"

// Lists the parameters of a model. One flat buffer holds all parameters, and another one of the same layout holds all
// gradients. The order is that of the rows in weights.hpp. Tensors that one matrix product reads together are adjacent.

namespace headgate::models {

/// Returns whether a tensor is a matrix. Views of weights can have another element type for matrices than for vectors.
inline bool is_matrix(ParameterKind kind) {
  return kind == ParameterKind::embedding || kind == ParameterKind::matrix || kind == ParameterKind::gate_matrix;
}

/// Returns whether AdamW applies weight decay to the tensor. Only matrices and embeddings decay.
inline bool decays(ParameterKind kind) { return is_matrix(kind); }

/// Returns whether a tensor of this kind belongs to the attention gate: its matrix, bias or input-independent logits.
inline bool is_gate(ParameterKind kind) {
  return kind == ParameterKind::gate_matrix || kind == ParameterKind::gate_bias ||
         kind == ParameterKind::gate_parameter;
}

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< sizes of its one or two dimensions
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t offset = 0;  ///< offset in the flat buffer, in elements
  std::int64_t count = 0;
};

/// Lists the parameters of a model, or only those of its gates, in the order of the flat buffer. The buffer has no
/// gaps.
class ParameterTable {
 public:
  explicit ParameterTable(const DecoderConfig& config);

  const std::vector<Parameter>& entries() const { return entries_; }
  std::int64_t total() const { return total_; }
  /// Returns the parameter with this name, or null.
  const Parameter* find(std::string_view name) const;
  /// Returns a table of the gates' parameters. Their offsets refer to a flat buffer that holds only gates.
  ParameterTable gates() const;

 private:
  ParameterTable() = default;

  std::vector<Parameter> entries_;
  std::int64_t total_ = 0;
};

/// Sets values(total) to initial values. N(μ, σ) is a normal distribution with mean μ and standard deviation σ:
/// - gate matrix: N(0, gate.init_std); other matrices and the embedding: N(0, init_std)
/// - norms: 1, or 0 if zero-centred; the norm in linear attention: 1
/// - gate bias: bias_init; other biases, gate parameters and sinks: 0
/// - convolutions: N(0, 1/√(3·kernel))
/// - decay rates: log U(0.01, 16); decay biases: 1
///
/// Each tensor has its own random stream, seeded with `seed` and the tensor's name. A tensor that two models have in
/// common thus gets the same values in both. Values can differ between standard libraries, because the C++ standard
/// does not define how std::normal_distribution computes.
template <typename T>
void initialise(T* values, const ParameterTable& table, const DecoderConfig& config, std::uint64_t seed);

}  // namespace headgate::models
