// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/config.hpp"
#include "models/decoder/weights.hpp"

// Lists the parameters of a model. All parameters lie in one flat buffer and all gradients in another of the same
// layout, in the order of the rows of weights.hpp. Tensors that one product reads together are adjacent.

namespace headgate::models {

/// Returns whether a tensor is a matrix, that is, has the element type M of LayerWeights and OuterWeights.
inline bool is_matrix(ParameterKind kind) {
  return kind == ParameterKind::embedding || kind == ParameterKind::matrix || kind == ParameterKind::gate_matrix;
}

/// Returns whether AdamW's weight decay applies: to matrices and embeddings only.
inline bool decays(ParameterKind kind) { return is_matrix(kind); }

/// Returns whether a gate uses the tensor to compute its logits.
inline bool is_gate(ParameterKind kind) {
  return kind == ParameterKind::gate_matrix || kind == ParameterKind::gate_bias ||
         kind == ParameterKind::gate_parameter;
}

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< sizes of the tensor, of rank 1 or 2
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t offset = 0;  ///< in elements from the start of the flat buffer
  std::int64_t count = 0;
};

/// Lists every parameter of a model, or of only its gates, in the order of the flat buffer, which has no gaps.
class ParameterTable {
 public:
  explicit ParameterTable(const DecoderConfig& config);

  const std::vector<Parameter>& entries() const { return entries_; }
  std::int64_t total() const { return total_; }
  /// Returns the parameter with this name, or null if there is none.
  const Parameter* find(std::string_view name) const;
  /// Returns a table of only the gates' parameters. Their offsets are those in a flat buffer that holds nothing else.
  ParameterTable gates() const;

 private:
  ParameterTable() = default;

  std::vector<Parameter> entries_;
  std::int64_t total_ = 0;
};

/// Sets values(total) to initial values:
/// - the gate's matrix: N(0, gate.init_std); other matrices and the embedding: N(0, init_std)
/// - norms: 1, or 0 if zero-centred; the norm in linear attention: 1
/// - the gate's bias: bias_init; other biases, gate parameters and sinks: 0
/// - convolutions: N(0, 1/√(3·kernel))
/// - decay rates: log U(0.01, 16); decay biases: 1
///
/// Each tensor has its own random stream, chosen by seed and name. Models that share a tensor therefore start with the
/// same values in it. Values can differ between standard libraries. The C++ standard fixes the output of the random
/// engine, but not how a library derives normal numbers from it.
template <typename T>
void initialise(T* values, const ParameterTable& table, const DecoderConfig& config, std::uint64_t seed);

}  // namespace headgate::models
