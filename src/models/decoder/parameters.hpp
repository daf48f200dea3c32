// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/decoder/config.hpp"
#include "models/decoder/weights.hpp"

// All parameters lie in one flat buffer, all gradients in another of the same layout, in the order of the rows of
// weights.hpp. Tensors that one product reads together follow each other.

namespace headgate::models {

/// What has the element type M of LayerWeights and OuterWeights.
inline bool is_matrix(ParameterKind kind) {
  return kind == ParameterKind::embedding || kind == ParameterKind::matrix || kind == ParameterKind::gate_matrix;
}

/// AdamW's weight decay is for matrices and embeddings alone.
inline bool decays(ParameterKind kind) { return is_matrix(kind); }

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;  ///< rank 1 or 2
  ParameterKind kind = ParameterKind::matrix;
  std::int64_t offset = 0;  ///< elements from the start of the flat buffer
  std::int64_t count = 0;
};

/// Every parameter of a model, in the order of the flat buffer, without holes.
class ParameterTable {
 public:
  explicit ParameterTable(const DecoderConfig& config);

  const std::vector<Parameter>& entries() const { return entries_; }
  std::int64_t total() const { return total_; }
  /// Null when there is none of that name.
  const Parameter* find(std::string_view name) const;

 private:
  std::vector<Parameter> entries_;
  std::int64_t total_ = 0;
};

/// values(total) =: matrices N(0, init_std), norms 1 (0 where zero-centred), the gate's bias
/// bias_init, other biases, gate parameters and sinks 0. Each tensor draws from a stream of its own, chosen by seed and
/// name: models that share a tensor start with the same numbers in it, whatever else they hold. The C++ standard fixes
/// the engine's bits; how normal numbers are made of them is up to the standard library.
template <typename T>
void initialise(T* values, const ParameterTable& table, const DecoderConfig& config, std::uint64_t seed);

}  // namespace headgate::models
