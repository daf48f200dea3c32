// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder/decoder.hpp"
#include "models/layers/magnitude.hpp"

namespace headgate::models {

/// What a layer does, kept whole: for comparison with statistics that never hold it.
struct PlainLayer {
  std::vector<double> weights;      ///< (B,Hq,T,T) attention; beside a sink the rows sum to less than 1
  std::vector<double> gates;        ///< (N,heads,features) g(z); (N,features) where heads share it
  std::vector<double> values;       ///< (N,Hkv,D) as the weighted sum sees them
  std::vector<double> output;       ///< (N,C) residual stream
  std::vector<double> exit_losses;  ///< (N) of the model that ends here
};

struct PlainRun {
  std::vector<double> losses;  ///< (N)
  std::vector<PlainLayer> layers;
};

/// The decoder once more, from the formulas: one token and one head at a time, tensors found by name, no kernels, no
/// BLAS, no fused buffers. The loss of a token whose target does not count is 0.
PlainRun run_plainly(const DecoderConfig& config, const double* parameters, BatchShape shape,
                     const std::int32_t* tokens, const std::int32_t* targets);

struct PlainLosses {
  layers::Number loss;                 ///< the mean over targets that count
  std::vector<layers::Number> losses;  ///< (N)
};

struct PlainGradients : PlainLosses {
  std::vector<layers::Number> gradients;  ///< of the mean, in the order of the parameters
};

/// The losses with the magnitudes that tolerances are made of.
PlainLosses losses_with_magnitudes(const DecoderConfig& config, const std::vector<double>& parameters, BatchShape shape,
                                   const std::int32_t* tokens, const std::int32_t* targets);

/// The same and the gradients of the loss, differentiated step by step.
PlainGradients differentiate_plainly(const DecoderConfig& config, const std::vector<double>& parameters,
                                     BatchShape shape, const std::int32_t* tokens, const std::int32_t* targets);

}  // namespace headgate::models
