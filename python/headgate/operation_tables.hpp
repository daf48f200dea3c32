// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "headgate/linear_attention.hpp"
#include "headgate/short_convolution.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/short_convolution_rows.hpp"

// Describes operations that return y and a state: their tables, Python names and passes. The bindings and the JAX
// handlers each extend these descriptions.

namespace headgate::python {

struct LinearAttentionTables {
  static constexpr const auto& kInputs = kLinearInputs;
  static constexpr const auto& kOutputs = kLinearOutputs;
  static constexpr const auto& kIncoming = kLinearIncoming;
  static constexpr const auto& kGradients = kLinearGradients;
  static constexpr const auto& kOptions = kLinearOptions;
  using Options = LinearAttentionOptions;
  static constexpr const char* kName = "linear_attention";
  static constexpr auto forward = linear_attention_forward;
  static constexpr auto backward = linear_attention_backward;
};

struct ShortConvolutionTables {
  static constexpr const auto& kInputs = kConvolutionInputs;
  static constexpr const auto& kOutputs = kConvolutionOutputs;
  static constexpr const auto& kIncoming = kConvolutionIncoming;
  static constexpr const auto& kGradients = kConvolutionGradients;
  static constexpr const auto& kOptions = kConvolutionOptions;
  using Options = ShortConvolutionOptions;
  static constexpr const char* kName = "short_convolution";
  static constexpr auto forward = short_convolution_forward;
  static constexpr auto backward = short_convolution_backward;
};

}  // namespace headgate::python
