// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "library/core/words.hpp"

// Lists the tensors of an attention layer on which a gate can act.

namespace headgate::layers {

/// First column of each part of the fused projection (N,width). The parts are q with Hq·D columns, the gate logits z,
/// and k and v with Hkv·D columns each. z is present only if it is projected from the layer's input.
struct ProjectionColumns {
  std::int64_t q = 0, gate = 0, k = 0, v = 0, width = 0;
};

enum class GateSite : std::int32_t { none, g1, g2, g3, g4, g5 };

/// Tells which values an elementwise gate has for a token:
/// - query: one value per feature of each query head
/// - key_value: one value per feature of each key/value head
/// - none: one value per channel of the layer
enum class GateHeads { query, key_value, none };

struct GateSiteRow {
  GateSite value;
  std::string_view word;
  std::string_view acts_on;
  GateHeads heads;
  /// First column of the projection that the gate acts on, as a member of ProjectionColumns. Null if the gate acts on
  /// another tensor. Gates on projections act before QK-norm and RoPE.
  std::int64_t ProjectionColumns::*column;
};

inline constexpr std::array kGateSites{
    GateSiteRow{GateSite::g1, "g1", "the attention output", GateHeads::query, nullptr},
    GateSiteRow{GateSite::g2, "g2", "values", GateHeads::key_value, &ProjectionColumns::v},
    GateSiteRow{GateSite::g3, "g3", "keys", GateHeads::key_value, &ProjectionColumns::k},
    GateSiteRow{GateSite::g4, "g4", "queries", GateHeads::query, &ProjectionColumns::q},
    GateSiteRow{GateSite::g5, "g5", "the output of W_o", GateHeads::none, nullptr},
};

/// Returns the entry of kGateSites for `site`, or null for GateSite::none.
constexpr const GateSiteRow* find_site(GateSite site) {
  for (const GateSiteRow& row : kGateSites) {
    if (row.value == site) return &row;
  }
  return nullptr;
}

/// Returns the name of the tensor that a gate at `site` acts on, for help texts. Empty for GateSite::none.
constexpr std::string_view explanation_of(GateSite site) {
  const GateSiteRow* row = find_site(site);
  return row == nullptr ? std::string_view{} : row->acts_on;
}

}  // namespace headgate::layers

template <>
struct headgate::Words<headgate::layers::GateSite> {
  static constexpr auto kAll = [] {
    std::array<Word<layers::GateSite>, layers::kGateSites.size() + 1> words{};
    words.front() = {layers::GateSite::none, "none"};
    for (std::size_t i = 0; i < layers::kGateSites.size(); ++i) {
      words[i + 1] = {layers::kGateSites[i].value, layers::kGateSites[i].word};
    }
    return words;
  }();
};
