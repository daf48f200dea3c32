// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "models/evaluate/figure.hpp"

// Defines the keys and limits of a record of metrics.jsonl. metrics_log.hpp writes records, metrics_reader.hpp reads
// them. The value of kEvaluationKey is an object with the keys of train::evaluation_json().

namespace headgate::train {

inline constexpr std::size_t kMostOfLine = std::size_t{1} << 24;  ///< maximum length of a line in bytes
inline constexpr int kMostNested = 16;                            ///< maximum depth of nested JSON brackets

inline constexpr std::string_view kStepKey = "step";
inline constexpr std::string_view kTokensKey = "tokens";
inline constexpr std::string_view kSecondsKey = "seconds";
inline constexpr std::string_view kSpikeKey = "spike";
inline constexpr std::string_view kEvaluationKey = "eval";

inline constexpr metrics::Figure kStepLoss{
    .key = "loss",
    .head = "train_loss",
    .decimals = 4,
    .meaning = "The loss on the tokens of the step itself, before its update, in nats: what training lowers."};
inline constexpr metrics::Figure kStepBits{
    .key = "loss_bits_per_byte",
    .head = "train_bits_per_byte",
    .decimals = 4,
    .meaning =
        "The same loss in bits for each byte of text that the targets stand for: runs with different tokens "
        "compare."};
inline constexpr metrics::Figure kGradNorm{
    .key = "grad_norm", .meaning = "The length of the gradient before clipping; jumps of it come with loss spikes."};
inline constexpr metrics::Figure kLearningRate{.key = "lr",
                                               .meaning = "The learning rate of the step, by warm-up and schedule."};
inline constexpr metrics::Figure kTokensPerSecond{.key = "tokens_per_second",
                                                  .meaning = "How many tokens a second the step trained on."};
inline constexpr metrics::Figure kMfu{
    .key = "mfu",
    .is_share = true,
    .meaning = "The share of the machine's peak that the model's own floating-point operations make."};

inline constexpr std::array kStepFigures{&kStepLoss, &kStepBits, &kGradNorm, &kLearningRate, &kTokensPerSecond, &kMfu};

/// Returns whether an incomplete line may be the beginning of a record, as a writer that was killed leaves it.
bool may_begin_record(std::string_view line);

}  // namespace headgate::train
