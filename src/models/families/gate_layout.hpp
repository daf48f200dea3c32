// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "library/core/words.hpp"
#include "models/decoder/config.hpp"

// Locates the rows of the gate's projection matrix in a file. The gate has a tensor of its own, or its rows are stored
// among the rows of q_proj.weight. A wrong order of rows would give plausible results and no error.

namespace headgate::models {

/// Order of the rows of q_proj.weight. Each of the Hq query heads, in Hkv groups, has D rows of q. It also has F rows
/// of its gate: D for an elementwise gate, 1 for a headwise gate.
/// - separate: q only; the gate is in gate_proj.weight
/// - per_query_head: for each head, its q, then its gate
/// - per_group: for each group, q of all its heads, then their gates
/// - trailing: q of all heads, then all gates
enum class GateLayout : std::int32_t { separate, per_query_head, per_group, trailing };

/// Indices of rows in the file's q_proj.weight. q[h·D + d] is the row of feature d of query head h, and gate[h·F + f]
/// is the row of feature f of the head's gate.
struct FusedRows {
  std::vector<std::int64_t> q, gate;
};
FusedRows fused_rows(GateLayout layout, const DecoderConfig& config);

/// Returns the number of rows of q_proj.weight in the file, including the gate's rows if the layout stores them there.
std::int64_t q_projection_rows(GateLayout layout, const DecoderConfig& config);

/// Throws Error if `layout` cannot store the gate of `config`. GateLayout::separate can store any gate. The other
/// layouts require:
/// - a gate at g1 or g4
/// - gate logits that are projected from the layer's input
/// - no biases of q, k and v
void require_fusable(GateLayout layout, const DecoderConfig& config);

/// Guesses the layout from the number of rows of q_proj.weight, whatever gate the config has. Returns text such as
/// "per_group with a headwise gate", or an empty string if no layout fits.
std::string q_projection_guess(std::int64_t rows, GateLayout layout, const DecoderConfig& config);

/// Describes the layout and the config's gate: "per_group with an elementwise gate" or "separate".
std::string layout_text(GateLayout layout, const DecoderConfig& config);

}  // namespace headgate::models

namespace headgate {

template <>
struct Words<models::GateLayout> {
  static constexpr std::array<Word<models::GateLayout>, 4> kAll{{{models::GateLayout::separate, "separate"},
                                                                 {models::GateLayout::per_query_head, "per_query_head"},
                                                                 {models::GateLayout::per_group, "per_group"},
                                                                 {models::GateLayout::trailing, "trailing"}}};
};

}  // namespace headgate
