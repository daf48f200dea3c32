// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "headgate/attention.hpp"
#include "headgate/headgate.h"
#include "headgate/runtime.hpp"
#include "library/core/gate_functions.hpp"
#include "library/core/precision_words.hpp"
#include "library/core/rows.hpp"
#include "library/core/words.hpp"

// The options of attention, a row each. The C API, `headgate attend`, the Python package and the operation of PyTorch
// walk them.

namespace headgate {

template <>
struct Words<Causality> {
  static constexpr std::array<Word<Causality>, 2> kAll{{{Causality::none, "none"}, {Causality::causal, "causal"}}};
};

/// The part of the operation that an option changes.
enum class OptionOf { scores, gate, products, execution };

template <>
struct Words<OptionOf> {
  static constexpr std::array<Word<OptionOf>, 4> kAll{{{OptionOf::scores, "scores"},
                                                       {OptionOf::gate, "gate"},
                                                       {OptionOf::products, "products"},
                                                       {OptionOf::execution, "execution"}}};
};

/// What users read of an option.
struct OptionText {
  const char* name = "";         ///< of the member, and of the argument in Python
  std::string_view option = {};  ///< "--softcap", of `headgate attend`; empty: it has none, or declares it by hand
  std::string_view type = {};    ///< what --help calls the option's value
  std::string_view help = {};    ///< begins with a small letter; stands behind the words of an enum
  std::string_view default_text = {};  ///< of an option that may be left empty
};

/// How the C API gives an option.
struct OptionInC {
  /// The member that is 1 where the option is given, and 0 where it has its default. Null: a zero is the default.
  std::int32_t headgate_attention_options::*given = nullptr;
  const char* given_name = "";
  /// Whether the structs of an older version end before the option.
  bool older_end_here = false;
};

/// The type of a member's value where it may be empty.
template <typename T>
struct WithoutOptional {
  using Type = T;
};
template <typename T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};

/// An option: a member of AttentionOptions or of its `context`, and the member of headgate_attention_options that sets
/// it.
template <class Owner, typename Member, typename C>
struct AttentionOption {
  using Value = typename WithoutOptional<Member>::Type;
  static constexpr bool kMayBeEmpty = !std::is_same_v<Value, Member>;
  /// Whether users give a name, "" for the default, for what the member holds: a target, a backend.
  static constexpr bool kIsName = std::is_same_v<C, const char*>;

  OptionText text;
  OptionOf part;
  Member Owner::*member;
  C headgate_attention_options::*c_member;
  OptionInC in_c;
  bool forward_only;

  /// The option's member of `options`, which may be const.
  template <class Options>
  constexpr auto& of(Options& options) const {
    if constexpr (std::is_same_v<Owner, ExecutionContext>) {
      return options.context.*member;
    } else {
      return options.*member;
    }
  }
};

template <class Owner, typename Member, typename C>
constexpr AttentionOption<Owner, Member, C> attention_option(OptionOf part, Member Owner::*member,
                                                             C headgate_attention_options::*c_member, OptionText text,
                                                             OptionInC in_c = {}, bool forward_only = false) {
  return {text, part, member, c_member, in_c, forward_only};
}

inline constexpr auto kAttentionOptions = [] {
  using O = AttentionOptions;
  using X = ExecutionContext;
  using C = headgate_attention_options;
  return std::tuple{
      attention_option(OptionOf::scores, &O::scale, &C::scale,
                       {"scale", "--scale", "X", "factor of q k^T", "1/sqrt(D)"},
                       {.given = &C::has_scale, .given_name = "has_scale"}),
      attention_option(OptionOf::scores, &O::softcap, &C::softcap,
                       {"softcap", "--softcap", "C", "scores become C * tanh(score / C); 0 for no cap"}),
      attention_option(OptionOf::scores, &O::causality, &C::causality,
                       {.name = "causality", .help = "causal: query i sees key j only if j <= at_i"}),
      attention_option(
          OptionOf::scores, &O::window_left, &C::window_left,
          {.name = "window_left", .help = "query i sees key j only if at_i - window_left <= j; -1 for no limit"},
          {.given = &C::has_window, .given_name = "has_window"}),
      attention_option(
          OptionOf::scores, &O::window_right, &C::window_right,
          {.name = "window_right", .help = "query i sees key j only if j <= at_i + window_right; -1 for no limit"},
          {.given = &C::has_window, .given_name = "has_window"}),
      attention_option(OptionOf::gate, &O::gate_fn, &C::gate_fn,
                       {"gate_fn", "--gate-fn", "FN", "the gate's function g, read only with a gate"}),
      attention_option(OptionOf::gate, &O::gate_op, &C::gate_op,
                       {"gate_op", "--gate-op", "OP", "mul: y = o * g(z); add: y = o + g(z)"}),
      attention_option(OptionOf::gate, &O::gate_threshold, &C::gate_threshold,
                       {"gate_threshold", "--gate-threshold", "T",
                        "rows whose gate is at most this in every feature, |g(z)| <= gate_threshold, are not computed: "
                        "y = 0 and lse = inf there, and y is off by at most gate_threshold * max |v|; 0 for off. For a "
                        "gate that multiplies, without gradients"},
                       {.older_end_here = true}, true),
      attention_option(OptionOf::products, &O::precision, &C::precision,
                       {"precision", "--precision", "P",
                        "of products of bf16: exact, in float32; native16, in bf16 with float32 sums where the CPU has "
                        "instructions for it (`headgate info` names them), as exact where it has none"},
                       {.older_end_here = true}),
      attention_option(OptionOf::execution, &X::threads, &C::threads,
                       {.name = "threads",
                        .help = "1 to max_threads(). The result has the same bits for every number",
                        .default_text = "default_threads()"}),
      attention_option(OptionOf::execution, &X::target, &C::target,
                       {.name = "target", .help = "a vector target of supported_targets(); '' for active_target()"},
                       {.older_end_here = true}),
      attention_option(
          OptionOf::execution, &X::backend, &C::backend,
          {.name = "backend", .help = "one of supported_backends(); '' for the first that can compute the call"}),
  };
}();

/// An option's value as text: the word of an enum, a number; "given" of a target or a backend.
template <typename Value>
std::string option_value_text(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(word_of(value));
  } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
    return fmt::format("{}", value.value_or(0));
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return fmt::format("{}", value);
  } else {
    return "given";
  }
}

/// visit(row, value as text) for each option of a part other than `execution` that `options`, or what has its members,
/// do not leave at its default.
template <class Options, class Visit>
void for_each_set_option(const Options& options, const Visit& visit) {
  const AttentionOptions plain;
  for_each_row(kAttentionOptions, [&](const auto& row) {
    if (row.part == OptionOf::execution || row.of(options) == row.of(plain)) return;
    visit(row, option_value_text(row.of(options)));
  });
}

}  // namespace headgate
