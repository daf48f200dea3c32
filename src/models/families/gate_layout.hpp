// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "library/core/words.hpp"
#include "models/decoder/config.hpp"

// Locates the rows of a gate's matrix in a file: in a tensor of their own, or among the rows of the query projection,
// in one of several orders. A wrong order gives plausible numbers and no error.

namespace headgate::models {

/// Order of the rows of q_proj.weight, with Hq heads in Hkv groups, D rows of a head's q and F of its gate (D, or 1 if
/// headwise). separate: q only; the gate is in gate_proj.weight. per_query_head: for each head its q, then its gate.
/// per_group: for each group the q of all its heads, then their gates. trailing: the q of all heads, then all gates.
enum class GateLayout : std::int32_t { separate, per_query_head, per_group, trailing };

/// Rows of q and of the gate in the fused tensor of the file: q[h·D + d] and gate[h·F + f].
struct FusedRows {
  std::vector<std::int64_t> q, gate;
};
FusedRows fused_rows(GateLayout layout, const DecoderConfig& config);

/// Returns the number of rows of the file's q_proj.weight.
std::int64_t q_projection_rows(GateLayout layout, const DecoderConfig& config);

/// Throws Error unless the gate's rows can be stored among those of q: it must have one logit or D for each query head,
/// from the layer's input. Also throws for biases of q, k and v.
void require_fusable(GateLayout layout, const DecoderConfig& config);

/// Returns "per_group with a headwise gate": a layout that gives so many rows of q_proj.weight, whatever the config
/// says; empty if no layout does.
std::string q_projection_guess(std::int64_t rows, GateLayout layout, const DecoderConfig& config);

/// Returns "per_group with an elementwise gate" or "separate".
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
