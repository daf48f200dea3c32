// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "headgate/attention.hpp"
#include "headgate/gated_norm.hpp"
#include "headgate/linear_attention.hpp"
#include "headgate/short_convolution.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/gated_norm_rows.hpp"
#include "library/core/linear_attention_rows.hpp"
#include "library/core/short_convolution_rows.hpp"
#include "python/headgate/output_shapes.hpp"

// Describes the operations to the handlers of jax_calls.hpp: tables, structs, the name in Python, and both passes with
// the same parameters.

namespace headgate::python::jax {

/// Stands for the saved outputs of operations whose backward pass reads none.
struct NothingSaved {};

struct Attention {
  static constexpr const auto& kInputs = kAttentionInputs;
  static constexpr const auto& kOutputs = kAttentionOutputs;
  static constexpr const auto& kSaved = kSavedTensors;
  static constexpr const auto& kIncoming = kIncomingTensors;
  static constexpr const auto& kGradients = kAttentionGradients;
  static constexpr const auto& kOptions = kAttentionOptions;
  using Options = AttentionOptions;
  using Saved = AttentionSaved;
  static constexpr const char* kName = "gated_attention";
  static constexpr auto forward = attention_forward;
  static constexpr auto backward = attention_backward;
};

struct LinearAttention {
  static constexpr const auto& kInputs = kLinearInputs;
  static constexpr const auto& kOutputs = kLinearOutputs;
  static constexpr const auto& kIncoming = kLinearIncoming;
  static constexpr const auto& kGradients = kLinearGradients;
  static constexpr const auto& kOptions = kLinearOptions;
  using Options = LinearAttentionOptions;
  using Saved = NothingSaved;
  static constexpr const char* kName = "linear_attention";
  static constexpr auto forward = linear_attention_forward;
  static void backward(const LinearAttentionGradients& gradients, const LinearAttentionInputs& inputs,
                       const Saved& /*saved*/, const LinearAttentionIncoming& incoming, const Options& options) {
    linear_attention_backward(gradients, inputs, incoming, options);
  }
};

struct ShortConvolution {
  static constexpr const auto& kInputs = kConvolutionInputs;
  static constexpr const auto& kOutputs = kConvolutionOutputs;
  static constexpr const auto& kIncoming = kConvolutionIncoming;
  static constexpr const auto& kGradients = kConvolutionGradients;
  static constexpr const auto& kOptions = kConvolutionOptions;
  using Options = ShortConvolutionOptions;
  using Saved = NothingSaved;
  static constexpr const char* kName = "short_convolution";
  static constexpr auto forward = short_convolution_forward;
  static void backward(const ShortConvolutionGradients& gradients, const ShortConvolutionInputs& inputs,
                       const Saved& /*saved*/, const ShortConvolutionIncoming& incoming, const Options& options) {
    short_convolution_backward(gradients, inputs, incoming, options);
  }
};

/// A row of a table of one tensor that is an argument of its own, such as y of the gated norm.
template <class StructOf, typename View>
struct SingleRow {
  using Struct = StructOf;
  const char* name;
  View Struct::*member;
  TensorKind kind;
};

struct NormOutput {
  TensorView y;
};
struct NormIncoming {
  ConstTensorView dy;
};
inline constexpr std::array kNormOutput{SingleRow<NormOutput, TensorView>{"y", &NormOutput::y, TensorKind::heads}};
inline constexpr std::array kNormIncoming{
    SingleRow<NormIncoming, ConstTensorView>{"dy", &NormIncoming::dy, TensorKind::heads}};

using python::dtype_of;
using python::shape_of;
inline Shape shape_of(const SingleRow<NormOutput, TensorView>& /*row*/, const GatedNormInputs& in) {
  return in.x.shape;
}
inline DType dtype_of(const SingleRow<NormOutput, TensorView>& /*row*/, const GatedNormInputs& in) {
  return in.x.dtype;
}

struct GatedNorm {
  static constexpr const auto& kInputs = kNormInputs;
  static constexpr const auto& kOutputs = kNormOutput;
  static constexpr const auto& kIncoming = kNormIncoming;
  static constexpr const auto& kGradients = kNormGradients;
  static constexpr const auto& kOptions = kNormOptions;
  using Options = GatedNormOptions;
  using Saved = NothingSaved;
  static constexpr const char* kName = "gated_norm";
  static void forward(const NormOutput& outputs, const GatedNormInputs& inputs, const Options& options) {
    gated_norm_forward(outputs.y, inputs, options);
  }
  static void backward(const GatedNormGradients& gradients, const GatedNormInputs& inputs, const Saved& /*saved*/,
                       const NormIncoming& incoming, const Options& options) {
    gated_norm_backward(gradients, inputs, incoming.dy, options);
  }
};

}  // namespace headgate::python::jax
