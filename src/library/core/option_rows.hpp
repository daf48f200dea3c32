// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "headgate/runtime.hpp"
#include "library/core/format.hpp"
#include "library/core/rows.hpp"
#include "library/core/words.hpp"

// Tables of an operation's options, a row each (rows.hpp). The C API, the command line, the Python package and the
// operation of PyTorch walk them.

namespace headgate {

/// The part of the operation that an option changes.
enum class OptionOf { scores, weights, gate, products, recurrence, convolution, norm, execution };

template <>
struct Words<OptionOf> {
  static constexpr std::array<Word<OptionOf>, 8> kAll{{{OptionOf::scores, "scores"},
                                                       {OptionOf::weights, "weights"},
                                                       {OptionOf::gate, "gate"},
                                                       {OptionOf::products, "products"},
                                                       {OptionOf::recurrence, "recurrence"},
                                                       {OptionOf::convolution, "convolution"},
                                                       {OptionOf::norm, "norm"},
                                                       {OptionOf::execution, "execution"}}};
};

/// What users read of an option.
struct OptionText {
  const char* name = "";               ///< of the member, and of the argument in Python
  std::string_view option = {};        ///< "--softcap", of the command line; empty: it has none, or declares it by hand
  std::string_view type = {};          ///< what --help calls the option's value
  std::string_view help = {};          ///< begins with a small letter; stands behind the words of an enum
  std::string_view default_text = {};  ///< of an option that may be left empty
  std::string_view words = {};         ///< "silu, none": those that it takes of its enum; empty: all
};

/// How the C API gives an option, in `COptions`.
template <class COptions>
struct OptionInC {
  /// The member that is 1 where the option is given, and 0 where it has its default. Null: a zero is the default.
  std::int32_t COptions::*given = nullptr;
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

/// An option of an operation: a member of its struct of options or of that struct's `context`, and the member of
/// `COptions`, the struct of the C API, that sets it.
template <class COptions, class Owner, typename Member, typename C>
struct OperationOption {
  using Value = typename WithoutOptional<Member>::Type;
  static constexpr bool kMayBeEmpty = !std::is_same_v<Value, Member>;
  /// Whether users give a name, "" for the default, for what the member holds: a target, a backend.
  static constexpr bool kIsName = std::is_same_v<C, const char*>;

  OptionText text;
  OptionOf part;
  Member Owner::*member;
  C COptions::*c_member;
  OptionInC<COptions> in_c;
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

template <class COptions, class Owner, typename Member, typename C>
constexpr OperationOption<COptions, Owner, Member, C> option_row(OptionOf part, Member Owner::*member,
                                                                 C COptions::*c_member, OptionText text,
                                                                 OptionInC<COptions> in_c = {},
                                                                 bool forward_only = false) {
  return {text, part, member, c_member, in_c, forward_only};
}

/// The rows of an ExecutionContext, which end the table of every operation.
template <class COptions>
constexpr auto execution_rows(OptionInC<COptions> target_in_c = {}) {
  using X = ExecutionContext;
  return std::tuple{
      option_row(OptionOf::execution, &X::threads, &COptions::threads,
                 {.name = "threads",
                  .help = "1 to max_threads(). The result has the same bits for every number",
                  .default_text = "default_threads()"}),
      option_row(OptionOf::execution, &X::target, &COptions::target,
                 {.name = "target", .help = "a vector target of supported_targets(); '' for active_target()"},
                 target_in_c),
      option_row(
          OptionOf::execution, &X::backend, &COptions::backend,
          {.name = "backend", .help = "one of supported_backends(); '' for the first that can compute the call"}),
  };
}

/// The words that an option of an enum takes.
template <class Row>
std::string words_of(const Row& row) {
  return row.text.words.empty() ? list_words<typename Row::Value>() : std::string(row.text.words);
}

/// The value whose word is `text`. Throws Error, "WHAT: 'TEXT' is none of …", on a word that the option does not take.
template <class Row>
typename Row::Value parse_option(std::string_view what, std::string_view text, const Row& row) {
  using Value = typename Row::Value;
  const std::optional<Value> found = find_word<Value>(text);
  const std::string words = words_of(row);
  const bool taken =
      found && formatted(", {}, ", words).find(formatted(", {}, ", word_of(*found))) != std::string::npos;
  require(taken, "{}: '{}' is none of {}", what, text, words);
  return *found;
}

/// An option's value as text: the word of an enum, a number; "given" of a target or a backend.
template <typename Value>
std::string option_value_text(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return std::string(word_of(value));
  } else if constexpr (std::is_same_v<Value, std::optional<double>>) {
    return formatted("{}", value.value_or(0));
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return formatted("{}", value);
  } else {
    return "given";
  }
}

/// visit(row, value as text) for each option of the table, but for those of `execution`, that `options`, or what has
/// its members, does not leave at its default in Options.
template <const auto& kRows, class Options, class Given, class Visit>
void for_each_set_option(const Given& options, const Visit& visit) {
  const Options plain;
  for_each_row(kRows, [&](const auto& row) {
    if (row.part == OptionOf::execution || row.of(options) == row.of(plain)) return;
    visit(row, option_value_text(row.of(options)));
  });
}

}  // namespace headgate
