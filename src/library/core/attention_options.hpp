// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <tuple>

#include "headgate/attention.hpp"
#include "headgate/headgate.h"
#include "library/core/gate_functions.hpp"
#include "library/core/option_rows.hpp"
#include "library/core/precision_words.hpp"
#include "library/core/rows.hpp"
#include "library/core/words.hpp"

// Table of the options of attention, one row per option (option_rows.hpp).

namespace headgate {

template <>
struct Words<Causality> {
  static constexpr std::array<Word<Causality>, 2> kAll{{{Causality::none, "none"}, {Causality::causal, "causal"}}};
};

inline constexpr auto kAttentionOptions = [] {
  using O = AttentionOptions;
  using C = headgate_attention_options;
  return std::tuple_cat(
      std::tuple{
          option_row(OptionOf::scores, &O::scale, &C::scale, {"scale", "--scale", "X", "factor of q k^T", "1/sqrt(D)"},
                     {.given = &C::has_scale, .given_name = "has_scale"}),
          option_row(OptionOf::scores, &O::softcap, &C::softcap,
                     {"softcap", "--softcap", "C", "scores become C * tanh(score / C); 0 for no cap"}),
          option_row(OptionOf::scores, &O::causality, &C::causality,
                     {.name = "causality", .help = "causal: query i sees key j only if j <= at_i"}),
          option_row(
              OptionOf::scores, &O::window_left, &C::window_left,
              {.name = "window_left", .help = "query i sees key j only if at_i - window_left <= j; -1 for no limit"},
              {.given = &C::has_window, .given_name = "has_window"}),
          option_row(
              OptionOf::scores, &O::window_right, &C::window_right,
              {.name = "window_right", .help = "query i sees key j only if j <= at_i + window_right; -1 for no limit"},
              {.given = &C::has_window, .given_name = "has_window"}),
          option_row(OptionOf::gate, &O::gate_fn, &C::gate_fn,
                     {"gate_fn", "--gate-fn", "FN", "the gate's function g, read only with a gate"}),
          option_row(OptionOf::gate, &O::gate_op, &C::gate_op,
                     {"gate_op", "--gate-op", "OP", "mul: y = o * g(z); add: y = o + g(z)"}),
          option_row(OptionOf::gate, &O::gate_threshold, &C::gate_threshold,
                     {"gate_threshold", "--gate-threshold", "T",
                      "rows whose gate is at most this in every feature, |g(z)| <= gate_threshold, are not computed: "
                      "y = 0 and lse = inf there, and y is off by at most gate_threshold * max |v|; 0 for off. For a "
                      "gate that multiplies, without gradients"},
                     {.older_end_here = true}, true),
          option_row(OptionOf::products, &O::precision, &C::precision,
                     {"precision", "--precision", "P",
                      "of products of bf16: exact, in float32; native16, in bf16 with float32 sums where the CPU has "
                      "instructions for it (`headgate info` names them), as exact where it has none"},
                     {.older_end_here = true}),
          option_row(OptionOf::weights, &O::dropout, &C::dropout,
                     {"dropout", "--dropout", "P",
                      "in [0, 1): each softmax weight becomes 0 with this probability, else weight / (1 - dropout); "
                      "lse is that of all weights"},
                     {.older_end_here = true}),
          option_row(OptionOf::weights, &O::dropout_seed, &C::dropout_seed,
                     {"dropout_seed", "--dropout-seed", "N",
                      "with the position of a weight it decides whether dropout drops it; both passes need the same"},
                     {.older_end_here = true}),
          option_row(OptionOf::scores, &O::key_block_size, &C::key_block_size,
                     {"key_block_size", "--key-block-size", "N",
                      "keys per entry of key_indices: entry e lists keys e * N to e * N + N - 1"},
                     {.older_end_here = true}),
      },
      execution_rows<C>({.older_end_here = true}));
}();

}  // namespace headgate
