// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace headgate::metrics {

/// Value of Figure::decimals and demo_decimals that hides the figure in the tables.
inline constexpr int kNoColumn = -1;

/// Selects how a model's value is computed from the values of its layers.
enum class OverLayers {
  mean,
  maximum,
  of_the_maximum,  ///< value of the layer with the largest value of the metric's first figure
};

/// Describes a figure, which is one of the numbers that a metric computes, and how to display it.
struct Figure {
  std::string_view key{};           ///< JSON key, column heading and argument of `--metrics`
  std::string_view head{};          ///< column heading, if it differs from the key
  bool null_without_gate = false;   ///< the value is null for models without a gate
  bool null_for_one_token = false;  ///< the value is null for sequences of one token
  bool may_overflow = false;        ///< infinity is a valid value, not a sign of divergence
  /// True if the figure is always in [0, 1], so that plots use this scale. For figures of gates, this holds only with
  /// sigmoid gates.
  bool is_share = false;
  OverLayers over_layers = OverLayers::mean;
  bool is_index = false;          ///< true if values are integers
  int decimals = kNoColumn;       ///< decimal places in the tables of `headgate eval` and `headgate compare`
  int demo_decimals = kNoColumn;  ///< decimal places in the tables of `headgate demo`
  /// One sentence that explains the figure to users. Empty for figures of Scope::triggers.
  std::string_view meaning{};

  constexpr std::string_view heading() const { return head.empty() ? key : head; }
};

/// Holds figures and their values, in the order of the registry.
class FigureRow {
 public:
  struct Entry {
    const Figure* figure;
    std::optional<double> value;  ///< empty: null in JSON
  };

  /// Sets the value of `figure`, or replaces it. Keeps a pointer to `figure`.
  void set(const Figure& figure, std::optional<double> value);

  /// Returns the figure's value. Returns nothing if the value is null or the figure was not requested.
  std::optional<double> find(const Figure& figure) const;
  /// Returns the figure's value. Throws Error if the value is null or the figure was not requested.
  double at(const Figure& figure) const;
  double or_zero(const Figure& figure) const { return find(figure).value_or(0.0); }

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

/// Returns whether all values are finite. Infinity is accepted for figures with Figure::may_overflow.
bool is_finite(const FigureRow& row);

}  // namespace headgate::metrics
