// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headgate/attention.hpp"

// The words of the command line and of JSON files for the library's enums.

namespace headgate::cli {

template <typename Enum>
struct Name {
  std::string_view name;
  Enum value;
};

inline constexpr std::array<Name<GateFn>, 7> kGateFns{{{"sigmoid", GateFn::sigmoid},
                                                       {"sigmoid2", GateFn::sigmoid2},
                                                       {"ns_sigmoid", GateFn::ns_sigmoid},
                                                       {"silu", GateFn::silu},
                                                       {"softplus", GateFn::softplus},
                                                       {"identity", GateFn::identity},
                                                       {"none", GateFn::none}}};

inline constexpr std::array<Name<GateOp>, 2> kGateOps{{{"mul", GateOp::mul}, {"add", GateOp::add}}};

inline constexpr std::array<Name<DType>, 4> kFloatDTypes{
    {{"f32", DType::f32}, {"f64", DType::f64}, {"f16", DType::f16}, {"bf16", DType::bf16}}};

template <typename Names>
auto find_name(const Names& names, std::string_view name) {
  std::optional<decltype(names[0].value)> found;
  for (const auto& entry : names) {
    if (entry.name == name) found = entry.value;
  }
  return found;
}

template <typename Names, typename Enum>
std::string_view name_of(const Names& names, Enum value) {
  for (const auto& entry : names) {
    if (entry.value == value) return entry.name;
  }
  return {};
}

/// "sigmoid, sigmoid2, …".
template <typename Names>
std::string list_names(const Names& names) {
  std::string out;
  for (const auto& entry : names) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

}  // namespace headgate::cli
