// SPDX-License-Identifier: Apache-2.0
#include "models/families/gate_layout.hpp"

#include "library/core/check.hpp"

namespace headgate::models {
namespace {

/// Returns the number of gate rows per query head.
std::int64_t gate_features(const DecoderConfig& c) {
  return layers::gate_logits(c.gate, c.dim, c.heads, c.kv_heads, c.head_dim).features;
}

std::string with_gate(GateLayout layout, const char* grain) {
  return std::string(word_of(layout)) + " with " + grain + " gate";
}

constexpr const char* kHeadwise = "a headwise";
constexpr const char* kElementwise = "an elementwise";

}  // namespace

FusedRows fused_rows(GateLayout layout, const DecoderConfig& c) {
  const std::int64_t D = c.head_dim, F = gate_features(c), group = c.heads / c.kv_heads;
  FusedRows out;
  for (std::int64_t h = 0; h < c.heads; ++h) {
    std::int64_t q = 0, gate = 0;  // row indices at which the head's q begins and at which its gate begins
    switch (layout) {
      case GateLayout::separate:
        q = h * D;
        gate = h * F;
        break;
      case GateLayout::per_query_head:
        q = h * (D + F);
        gate = q + D;
        break;
      case GateLayout::per_group: {
        const std::int64_t first = h / group * group * (D + F), in_group = h % group;
        q = first + in_group * D;
        gate = first + group * D + in_group * F;
        break;
      }
      case GateLayout::trailing:
        q = h * D;
        gate = c.heads * D + h * F;
        break;
    }
    for (std::int64_t d = 0; d < D; ++d) out.q.push_back(q + d);
    for (std::int64_t f = 0; f < F; ++f) out.gate.push_back(gate + f);
  }
  return out;
}

std::int64_t q_projection_rows(GateLayout layout, const DecoderConfig& c) {
  return c.heads * (c.head_dim + (layout == GateLayout::separate ? 0 : gate_features(c)));
}

void require_fusable(GateLayout layout, const DecoderConfig& c) {
  if (layout == GateLayout::separate) return;
  const layers::GateVariant& gate = c.gate;
  const bool of_heads = gate.site == layers::GateSite::g1 || gate.site == layers::GateSite::g4;
  require(of_heads && gate.source == layers::GateSource::input,
          "layout {}: only a gate at g1 or g4 that is projected from the layer's input has its rows among those of q, "
          "not {}",
          word_of(layout), layers::gate_name(gate));
  require(c.qkv_bias == QkvBias::none, "layout {}: a fused projection cannot have biases of q, k and v",
          word_of(layout));
}

std::string q_projection_guess(std::int64_t rows, GateLayout layout, const DecoderConfig& c) {
  const std::int64_t q = c.heads * c.head_dim;
  if (rows == q) return std::string(word_of(GateLayout::separate));
  const GateLayout fused = layout == GateLayout::separate ? GateLayout::per_group : layout;
  if (rows == q + c.heads) return with_gate(fused, kHeadwise);
  return rows == 2 * q ? with_gate(fused, kElementwise) : "";
}

std::string layout_text(GateLayout layout, const DecoderConfig& c) {
  if (layout == GateLayout::separate) return std::string(word_of(layout));
  return with_gate(layout, c.gate.grain == layers::GateGrain::headwise ? kHeadwise : kElementwise);
}

}  // namespace headgate::models
