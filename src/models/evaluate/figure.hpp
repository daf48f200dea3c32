// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace headgate::metrics {

/// Value of Figure::decimals or demo_decimals for figures that the tables do not show.
inline constexpr int kNoColumn = -1;

/// Selects how a figure's value for the whole model is computed from its values for the layers.
enum class OverLayers {
  mean,
  maximum,
  of_the_maximum,  ///< value in the layer where the metric's first figure is largest
};

/// Describes one number of a metric and how to display it.
struct Figure {
  std::string_view key{};           ///< name of the figure: JSON key, column heading and argument of `--metrics`
  std::string_view head{};          ///< column heading, if it differs from the key
  bool null_without_gate = false;   ///< null for models without a gate
  bool null_for_one_token = false;  ///< null for sequences of one token
  bool may_overflow = false;        ///< infinity is a valid value, not a sign of divergence
  /// True if the figure lies in [0, 1] by definition. Plots then use this scale. Figures of gates lie in [0, 1] only
  /// with sigmoid gates.
  bool is_share = false;
  OverLayers over_layers = OverLayers::mean;
  bool is_index = false;          ///< true if values are whole numbers, integers in JSON
  int decimals = kNoColumn;       ///< decimal places in the tables of `headgate eval` and `headgate compare`
  int demo_decimals = kNoColumn;  ///< decimal places in the tables of `headgate demo`
  /// One sentence for users that explains the figure. Empty for figures of Scope::triggers.
  std::string_view meaning{};

  constexpr std::string_view heading() const { return head.empty() ? key : head; }
};

/// Holds figures and their values, in the order of the registry.
class FigureRow {
 public:
  struct Entry {
    const Figure* figure;
    std::optional<double> value;  ///< null in JSON if empty
  };

  /// Sets the value of `figure`, or replaces it. Keeps a pointer to `figure`.
  void set(const Figure& figure, std::optional<double> value);

  /// Returns the figure's value, or nothing if the value is null or the figure was not requested.
  std::optional<double> find(const Figure& figure) const;
  /// Returns the figure's value. Throws Error if the value is null or the figure was not requested.
  double at(const Figure& figure) const;
  double or_zero(const Figure& figure) const { return find(figure).value_or(0.0); }

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

/// Returns whether no value is NaN, and only values of figures with Figure::may_overflow are infinite.
bool is_finite(const FigureRow& row);

}  // namespace headgate::metrics
