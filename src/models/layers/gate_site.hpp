// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "library/core/words.hpp"

// Lists the places of a layer that a gate can act on, one row each.

namespace headgate::layers {

/// First columns of q (Hq·D), z (if it is projected), k and v (Hkv·D) in the fused projection (N,width).
struct ProjectionColumns {
  std::int64_t q = 0, gate = 0, k = 0, v = 0, width = 0;
};

enum class GateSite : std::int32_t { none, g1, g2, g3, g4, g5 };

/// What an elementwise gate has one value per token for. query, key_value: each feature of each such head. none: each
/// channel of the layer.
enum class GateHeads { query, key_value, none };

struct GateSiteRow {
  GateSite value;
  std::string_view word;
  std::string_view acts_on;
  GateHeads heads;
  /// First column of the projection that the gate acts on, before QK-norm and RoPE; null if it acts on none.
  std::int64_t ProjectionColumns::*column;
};

inline constexpr std::array kGateSites{
    GateSiteRow{GateSite::g1, "g1", "the attention output", GateHeads::query, nullptr},
    GateSiteRow{GateSite::g2, "g2", "values", GateHeads::key_value, &ProjectionColumns::v},
    GateSiteRow{GateSite::g3, "g3", "keys", GateHeads::key_value, &ProjectionColumns::k},
    GateSiteRow{GateSite::g4, "g4", "queries", GateHeads::query, &ProjectionColumns::q},
    GateSiteRow{GateSite::g5, "g5", "the output of W_o", GateHeads::none, nullptr},
};

/// Returns the row of a site; null for none.
constexpr const GateSiteRow* find_site(GateSite site) {
  for (const GateSiteRow& row : kGateSites) {
    if (row.value == site) return &row;
  }
  return nullptr;
}

/// Returns what a gate at `site` acts on, for help texts; empty for none.
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
