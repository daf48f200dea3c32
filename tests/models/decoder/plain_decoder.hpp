// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder/decoder.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/magnitude.hpp"

namespace headgate::models {

/// Holds whole activations of a layer, to compare with statistics that never store them.
struct PlainLayer {
  std::vector<double> weights;      ///< (B,Hq,T,T) attention; with a sink the rows sum to less than 1
  std::vector<double> gates;        ///< (N,heads,features) g(z); (N,features) if heads share it
  std::vector<double> keys;         ///< (N,Hkv,D) after gate, norm and RoPE
  std::vector<double> values;       ///< (N,Hkv,D) after the gate
  std::vector<double> output;       ///< (N,C) residual stream
  std::vector<double> exit_losses;  ///< (N) loss of the model if it ended here
  // Of linear attention, in place of weights, gates and values:
  std::vector<double> rule_weights;  ///< (B,Hv,T,T) what token t reads of the value of token j
  std::vector<double> decays;        ///< (N,Hv) e^g
  std::vector<double> betas;         ///< (N,Hv)
  std::vector<double> output_gates;  ///< (N,Hv,Dv) silu(z)
  std::vector<double> states;        ///< (B,Hv,D,Dv) after the last token
};

struct PlainRun {
  std::vector<double> losses;  ///< (N)
  std::vector<PlainLayer> layers;
};

/// Runs the decoder by the formulas: one token and one head at a time, tensors found by name, no kernels, no BLAS, no
/// fused buffers. The loss of an ignored target is 0. Rounds the inputs of products as PartOptions::activations does.
PlainRun run_plainly(const DecoderConfig& config, const double* parameters, BatchShape shape,
                     const std::int32_t* tokens, const std::int32_t* targets,
                     layers::ActivationRounding rounding = layers::ActivationRounding::none);

struct PlainLosses {
  layers::Number loss;                 ///< mean over targets that are not ignored
  std::vector<layers::Number> losses;  ///< (N)
};

struct PlainGradients : PlainLosses {
  std::vector<layers::Number> gradients;  ///< of the mean, in the order of the parameters
};

/// Returns the losses with the magnitudes that tolerances need.
PlainLosses losses_with_magnitudes(const DecoderConfig& config, const std::vector<double>& parameters, BatchShape shape,
                                   const std::int32_t* tokens, const std::int32_t* targets);

/// Returns the same and the gradients of the loss, differentiated step by step.
PlainGradients differentiate_plainly(const DecoderConfig& config, const std::vector<double>& parameters,
                                     BatchShape shape, const std::int32_t* tokens, const std::int32_t* targets);

}  // namespace headgate::models
