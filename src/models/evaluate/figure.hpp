// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace headgate::metrics {

/// A column of the tables of `headgate eval`. Width 0: none.
struct Column {
  std::string_view head{};
  int width = 0;
  int decimals = 4;
};

/// A column of the tables of `headgate demo`, headed by two lines. Both empty: none.
struct DemoColumn {
  std::string_view upper{}, lower{};
  int decimals = 3;

  constexpr bool empty() const { return upper.empty() && lower.empty(); }
};

/// One number that a metric gives, and how it is shown.
struct Figure {
  std::string_view key{};           ///< in JSON
  bool null_without_gate = false;   ///< models without a gate do not have it
  bool null_for_one_token = false;  ///< it takes a query that sees another token: sequences of one have none
  bool may_overflow = false;        ///< an infinity says nothing of the model
  /// It lies in [0, 1] by definition; a figure of a gate does if its function is the sigmoid. Pages draw it on that
  /// scale.
  bool is_share = false;
  Column column{};
  DemoColumn demo{};
  /// For people: what it says and where it comes from, one sentence. Empty for figures of Scope::triggers.
  std::string_view meaning{};
};

/// Figures and their values, in the order of the registry.
class FigureRow {
 public:
  struct Entry {
    const Figure* figure;
    std::optional<double> value;  ///< null in JSON where there is none
  };

  /// `figure` is kept by its address.
  void set(const Figure& figure, std::optional<double> value);

  /// Null, and also where nobody asked for the figure.
  std::optional<double> find(const Figure& figure) const;
  /// Throws Error where there is none.
  double at(const Figure& figure) const;
  double or_zero(const Figure& figure) const { return find(figure).value_or(0.0); }

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

/// False where a figure is a NaN or an infinity.
bool is_finite(const FigureRow& row);

}  // namespace headgate::metrics
