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

// Row types for tables of an operation's options, one row per option (rows.hpp). The C API, the command line, the
// Python package and the PyTorch operator iterate over these tables.

namespace headgate {

/// The part of an operation that an option changes.
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

/// Names and descriptions of an option, for users.
struct OptionText {
  const char* name = "";         ///< name of the member and of the Python argument
  std::string_view option = {};  ///< command-line option ("--softcap"); empty if the command line has none for this row
  std::string_view type = {};    ///< name of the option's value in --help
  /// Description in --help, where it follows the names of an enum's values. Begins with a lower-case letter.
  std::string_view help = {};
  std::string_view default_text = {};  ///< description of the default, for options of type std::optional
  std::string_view words = {};         ///< names of the permitted enumerators ("silu, none"); empty: all
};

/// The representation of an option in the C struct `COptions`.
template <class COptions>
struct OptionInC {
  /// The member of COptions that is 1 if the option is given, and 0 if the default holds. Null if COptions has no such
  /// member: the default then holds if the option itself is 0.
  std::int32_t COptions::*given = nullptr;
  const char* given_name = "";
  /// True if an older version of the C struct ended just before this option.
  bool older_end_here = false;
};

/// Removes std::optional from a type: Type is U if T is std::optional<U>, otherwise T.
template <typename T>
struct WithoutOptional {
  using Type = T;
};
template <typename T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};

/// An option of an operation. `member` points to a member of the operation's options, or of the ExecutionContext in
/// them. `c_member` points to the corresponding member of the C struct `COptions`.
template <class COptions, class Owner, typename Member, typename C>
struct OperationOption {
  using Value = typename WithoutOptional<Member>::Type;
  static constexpr bool kMayBeEmpty = !std::is_same_v<Value, Member>;
  /// True if users select the value by name, as for a target or a backend. "" selects the default.
  static constexpr bool kIsName = std::is_same_v<C, const char*>;

  OptionText text;
  OptionOf part;
  Member Owner::*member;
  C COptions::*c_member;
  OptionInC<COptions> in_c;
  bool forward_only;

  /// Returns a reference to the option in `options`, which may be const.
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

/// Returns the rows of ExecutionContext. They are the last rows of every operation's option table.
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

/// Returns the names of the permitted enumerators of an option, separated by ", ".
template <class Row>
std::string words_of(const Row& row) {
  return row.text.words.empty() ? list_words<typename Row::Value>() : std::string(row.text.words);
}

/// Returns the enumerator named `text`. Throws Error, "WHAT: 'TEXT' is none of …", if there is none or if the option
/// does not permit the enumerator.
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

/// Formats an option's value: the name of an enumerator, a number, or "given" for a target or a backend.
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

/// Calls visit(row, value as text) for each option in `options` that differs from its default in Options. Skips the
/// options of OptionOf::execution. `options` may have another type than Options, with the same members.
template <const auto& kRows, class Options, class Given, class Visit>
void for_each_set_option(const Given& options, const Visit& visit) {
  const Options plain;
  for_each_row(kRows, [&](const auto& row) {
    if (row.part == OptionOf::execution || row.of(options) == row.of(plain)) return;
    visit(row, option_value_text(row.of(options)));
  });
}

}  // namespace headgate
