// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/view.hpp"
#include "models/decoder/decoder.hpp"

namespace headgate::train {

/// Compares a model with a reference on the same tokens. Each member is a mean over targets that are not ignored.
struct Divergence {
  double loss_nats = 0.0;
  double reference_loss_nats = 0.0;
  double kl_nats = 0.0;     ///< Σ p (log p − log q) over the vocabulary; p of the reference, q of the model
  double same_top_1 = 0.0;  ///< fraction of targets for which p and q have the same most probable token
};

/// Accumulates the means of a Divergence: holds each member's sum over `targets` targets.
struct DivergenceSums {
  double targets = 0.0;
  Divergence sums;

  void join(const DivergenceSums& other);
  /// Adds a target. p(V) and q(V) are the log-probabilities of the reference and of the model.
  void add(View<const float, 1> p, View<const float, 1> q, std::int32_t target);
  Divergence means() const;
};

/// Selects what distinguishes a model from the reference with which the model is compared:
/// - cache: the model reads keys and values that are rounded to int8. The reference reads unrounded ones.
/// - activations: the model rounds the inputs of its matrix products. The reference does not.
/// - reference: the reference is another model.
enum class Compared : std::int32_t { cache, activations, reference };

/// Gives the words for a kind of comparison in JSON and in printed lines.
struct ComparedRow {
  Compared value;
  std::string_view key;  ///< JSON key under which the results of this kind of comparison stand
  /// JSON key whose value is Comparison::name. If empty, Comparison::name is itself the JSON key of the results.
  std::string_view name_key;
  std::string_view reference_key;  ///< JSON key of the reference's loss
  std::string_view text;           ///< text before Comparison::name in a printed line
  std::string_view note;           ///< text after Comparison::name in a printed line
  std::string_view reference;      ///< name of the reference's loss in a printed line
};
inline constexpr std::array<ComparedRow, 3> kComparedRows{{
    {Compared::cache, "cache", "dtype", "unrounded_loss_nats", "cache", "", "not rounded"},
    {Compared::activations, "activations", "", "unrounded_loss_nats", "activations", " (simulated)", "not rounded"},
    {Compared::reference, "against", "model", "reference_loss_nats", "against", "", "its loss"},
}};

/// The results of one comparison. `name` is the dtype of the cache, the name of an ActivationRounding, or the path of
/// the reference model.
struct Comparison {
  Compared what = Compared::cache;
  std::string name;
  Divergence figures;
  std::int64_t first = 0;  ///< tokens at the start of a sequence whose keys and values stay unrounded
};

/// Adds the comparisons to the JSON of an evaluation.
void add_comparisons(nlohmann::ordered_json& out, const std::vector<Comparison>& comparisons);

/// Returns the line of text that shows a comparison, without a line break. `name` replaces Comparison::name, which may
/// be a path with characters that are unsafe to print.
std::string comparison_line(const Comparison& comparison, const std::string& name);

/// Describes one model of a comparison. `config` and `parameters` must outlive it.
struct ComparedModel {
  const models::DecoderConfig* config = nullptr;
  const float* parameters = nullptr;
  models::PartOptions parts;
};

/// Number of tokens for which a comparison holds log-probabilities at a time, at most. Each compared model needs
/// kComparedTokens · vocab floats.
inline constexpr std::int64_t kComparedTokens = 256;

}  // namespace headgate::train
