// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "library/core/format.hpp"
#include "library/core/range.hpp"
#include "library/core/words.hpp"

// Functions for tables of fields. A table is a constexpr std::tuple with one row per field of a struct. A row contains
// `member`, a pointer to the field, and the field's names, description and range. Readers and writers of files, command
// lines, checks and generated documents iterate over the table.

namespace headgate {

/// Names and descriptions of a field, for users.
struct FieldText {
  std::string_view name;         ///< name of the member
  std::string_view key = {};     ///< key in files; if empty, `name` is the key
  std::string_view option = {};  ///< command-line option ("--dim"); empty: none
  std::string_view type = {};    ///< name of the option's value in --help
  std::string_view help = {};
  /// Default to show in --help: null shows the value of the field, "" shows none. Use "" if `help` describes the
  /// default.
  const char* default_text = nullptr;
  std::string_view remark = {};  ///< text after the default in --help, for example "0: never"
};

constexpr FieldText with_key(FieldText text) {
  if (text.key.empty()) text.key = text.name;
  return text;
}

/// The names of an enum's enumerators on the command line. Specialise this struct if they differ from the names in
/// files.
template <typename Enum>
struct OptionWords : Words<Enum> {};

/// Returns the name of the enumerator `value` on the command line.
template <typename Enum>
std::string_view option_word_of(Enum value) {
  for (const auto& row : OptionWords<Enum>::kAll) {
    if (row.value == value) return row.word;
  }
  return word_of(value);
}

/// Returns the enumerator that `text` names, on the command line or in files. Throws Error if there is none.
template <typename Enum>
Enum parse_option_word(std::string_view option, std::string_view text) {
  const auto& words = OptionWords<Enum>::kAll;
  for (const auto& row : words) {
    if (is_word(text, row.word)) return row.value;
  }
  const std::optional<Enum> found = find_word<Enum>(text);
  require(found.has_value(), "{}: '{}' is none of {}", option, text,
          comma_separated(words, [](const auto& row) { return row.word; }));
  return *found;
}

/// Calls visit(row) for each row of a table, in order.
template <typename... Rows, class Visit>
constexpr void for_each_row(const std::tuple<Rows...>& rows, const Visit& visit) {
  std::apply([&visit](const auto&... row) { (visit(row), ...); }, rows);
}

/// Returns the index of the row that describes `member`, or the number of rows if the table has no such row.
template <typename... Rows, typename Member>
constexpr std::size_t index_of_row(const std::tuple<Rows...>& rows, Member member) {
  std::size_t index = 0, found = sizeof...(Rows);
  for_each_row(rows, [&](const auto& row) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(row.member)>, Member>) {
      if (row.member == member) found = index;
    }
    ++index;
  });
  return found;
}

/// Returns the row that describes a field, as in row_of<kConfigKeys, &DecoderConfig::dim>().option.
template <const auto& kRows, auto kMember>
constexpr const auto& row_of() {
  constexpr std::size_t kIndex = index_of_row(kRows, kMember);
  static_assert(kIndex < std::tuple_size_v<std::remove_cvref_t<decltype(kRows)>>, "the table has no such row");
  return std::get<kIndex>(kRows);
}

/// The type of the field that a row describes.
template <class Row>
using ValueOf = typename Row::Value;

template <typename T>
struct IsList : std::false_type {};
template <typename Element>
struct IsList<std::vector<Element>> : std::true_type {};
template <typename T>
inline constexpr bool kIsList = IsList<T>::value;

/// Values for some of a table's fields, for example from a command line. Has a slot for each row. The slot of a list
/// field is a list, which is empty if no value was given. Other slots are of type std::optional.
template <const auto& kRows>
class Given {
 public:
  template <typename T>
  using Slot = std::conditional_t<kIsList<T>, T, std::optional<T>>;

  /// Returns the slot of the field `kMember`, as in given.of<&DecoderConfig::dim>() = 64.
  template <auto kMember>
  auto& of() {
    return std::get<index<kMember>()>(slots_);
  }
  template <auto kMember>
  const auto& of() const {
    return std::get<index<kMember>()>(slots_);
  }

  /// Calls visit(row, slot) for each row. `slot` holds the value for the row's field.
  template <class Visit>
  void for_each(const Visit& visit) {
    for_each_of(*this, visit, kIndices);
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for_each_of(*this, visit, kIndices);
  }

  template <typename T>
  static bool is_given(const std::optional<T>& slot) {
    return slot.has_value();
  }
  template <typename Element>
  static bool is_given(const std::vector<Element>& slot) {
    return !slot.empty();
  }
  template <typename T>
  static const T& value(const std::optional<T>& slot) {
    return *slot;
  }
  template <typename Element>
  static const std::vector<Element>& value(const std::vector<Element>& slot) {
    return slot;
  }

  bool any() const {
    bool found = false;
    for_each([&found](const auto&, const auto& slot) { found = found || is_given(slot); });
    return found;
  }

  /// Assigns each given value to its field of `object`.
  template <class Object>
  void put_into(Object& object) const {
    for_each([&object](const auto& row, const auto& slot) {
      if (is_given(slot)) row.of(object) = value(slot);
    });
  }

 private:
  using Rows = std::remove_cvref_t<decltype(kRows)>;
  static constexpr auto kIndices = std::make_index_sequence<std::tuple_size_v<Rows>>();

  template <auto kMember>
  static constexpr std::size_t index() {
    constexpr std::size_t kFound = index_of_row(kRows, kMember);
    static_assert(kFound < std::tuple_size_v<Rows>, "the table has no row for this field");
    return kFound;
  }

  template <class Self, class Visit, std::size_t... kIndex>
  static void for_each_of(Self& self, const Visit& visit, std::index_sequence<kIndex...>) {
    (visit(std::get<kIndex>(kRows), std::get<kIndex>(self.slots_)), ...);
  }

  template <typename... Row>
  static std::tuple<Slot<ValueOf<Row>>...> slots_of(const std::tuple<Row...>&);

  decltype(slots_of(kRows)) slots_;
};

}  // namespace headgate
