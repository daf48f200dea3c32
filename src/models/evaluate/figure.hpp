// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace headgate::metrics {

/// Number of decimal places (Figure::decimals, Figure::demo_decimals) that means: the table has no column for it.
inline constexpr int kNoColumn = -1;

/// Selects how a number about the whole model is computed from the same number about each layer.
enum class OverLayers {
  mean,
  maximum,
  of_the_maximum,  ///< the number of one layer: the layer in which the metric's first number is largest
};

/// Describes a figure: one of the numbers that a metric computes, such as the loss in bits. Says how to display it.
struct Figure {
  std::string_view key{};           ///< name of the number: JSON key, column heading and argument of `--metrics`
  std::string_view head{};          ///< column heading, if it differs from the key
  bool null_without_gate = false;   ///< the value is null for models without a gate
  bool null_for_one_token = false;  ///< the value is null for sequences of one token
  bool may_overflow = false;        ///< infinity is a valid value, not a sign of divergence
  /// True if all values are in [0, 1], so that plots use this scale. Values about gates are in [0, 1] only for sigmoid
  /// gates.
  bool is_share = false;
  OverLayers over_layers = OverLayers::mean;
  bool is_index = false;          ///< true if values are integers
  int decimals = kNoColumn;       ///< decimal places in the tables of `headgate eval` and `headgate compare`
  int demo_decimals = kNoColumn;  ///< decimal places in the tables of `headgate demo`
  /// One sentence that explains the number to users. Empty for metrics with Scope::triggers.
  std::string_view meaning{};

  constexpr std::string_view heading() const { return head.empty() ? key : head; }
};

/// Holds the numbers that metrics computed for the model, a layer or a head: pairs of a Figure and its value, in the
/// order of the metrics in the registry.
class FigureRow {
 public:
  struct Entry {
    const Figure* figure;
    std::optional<double> value;  ///< empty if undefined; JSON then has null
  };

  /// Sets the value of `figure`, or replaces it. Keeps a pointer to `figure`.
  void set(const Figure& figure, std::optional<double> value);

  /// Returns the value of `figure`. Returns nothing if the value is undefined or no requested metric computes it.
  std::optional<double> find(const Figure& figure) const;
  /// Returns the value of `figure`. Throws Error if the value is undefined or no requested metric computes it.
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
