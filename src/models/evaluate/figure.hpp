// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace headgate::metrics {

/// As Figure::decimals: the tables have no column for it.
inline constexpr int kNoColumn = -1;

/// Describes one number that a metric gives, and how it is shown.
struct Figure {
  std::string_view key{};           ///< its name: key in JSON, heading of its column, word of `--metrics`
  std::string_view head{};          ///< the heading, if the key alone does not say what it is
  bool null_without_gate = false;   ///< null for models without a gate
  bool null_for_one_token = false;  ///< null for sequences of one token, whose query sees no other token
  bool may_overflow = false;        ///< infinity is allowed: it does not mean that the model diverged
  /// The figure lies in [0, 1] by definition. A gate's figure does if its function is the sigmoid. Pages draw it on
  /// that scale.
  bool is_share = false;
  bool is_maximum = false;        ///< of the model the largest over its layers, not their mean
  int decimals = kNoColumn;       ///< in the tables of `headgate eval` and `headgate compare`
  int demo_decimals = kNoColumn;  ///< in those of `headgate demo`
  /// One sentence for readers: what the figure says and where it comes from. Empty for figures of Scope::triggers.
  std::string_view meaning{};

  constexpr std::string_view heading() const { return head.empty() ? key : head; }
};

/// Holds figures and their values, in the order of the registry.
class FigureRow {
 public:
  struct Entry {
    const Figure* figure;
    std::optional<double> value;  ///< null in JSON if absent
  };

  /// Keeps a pointer to `figure`.
  void set(const Figure& figure, std::optional<double> value);

  /// Returns the value; none if it is null or was not asked for.
  std::optional<double> find(const Figure& figure) const;
  /// Throws Error if there is no value.
  double at(const Figure& figure) const;
  double or_zero(const Figure& figure) const { return find(figure).value_or(0.0); }

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;
};

/// Returns false if a figure is NaN or infinite.
bool is_finite(const FigureRow& row);

}  // namespace headgate::metrics
