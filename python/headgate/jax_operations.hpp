// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "headgate/attention.hpp"
#include "headgate/gated_norm.hpp"
#include "library/core/attention_options.hpp"
#include "library/core/attention_tensors.hpp"
#include "library/core/gated_norm_rows.hpp"
#include "python/headgate/operation_tables.hpp"
#include "python/headgate/output_shapes.hpp"

// Describes each operation for the handlers of jax_calls.hpp. A struct holds the operation's tables, its Python name
// and its two passes. The passes have the same parameters in all operations.

namespace headgate::python::jax {

/// Stands for the saved outputs in operations whose backward pass reads no saved outputs.
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

/// Adds an ignored parameter `saved` to a backward pass that reads no saved outputs. All backward passes then have the
/// same parameters.
template <class Tables>
struct WithoutSaved : Tables {
  using Saved = NothingSaved;
  static void backward(const auto& gradients, const auto& inputs, const Saved& /*saved*/, const auto& incoming,
                       const typename Tables::Options& options) {
    Tables::backward(gradients, inputs, incoming, options);
  }
};

using LinearAttention = WithoutSaved<LinearAttentionTables>;
using ShortConvolution = WithoutSaved<ShortConvolutionTables>;

/// Row of a table that describes a single tensor. The library takes this tensor, such as y or dy of the gated norm, as
/// an argument and not in a struct.
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

struct GatedNormTables {
  static constexpr const auto& kInputs = kNormInputs;
  static constexpr const auto& kOutputs = kNormOutput;
  static constexpr const auto& kIncoming = kNormIncoming;
  static constexpr const auto& kGradients = kNormGradients;
  static constexpr const auto& kOptions = kNormOptions;
  using Options = GatedNormOptions;
  static constexpr const char* kName = "gated_norm";
  static void forward(const NormOutput& outputs, const GatedNormInputs& inputs, const Options& options) {
    gated_norm_forward(outputs.y, inputs, options);
  }
  static void backward(const GatedNormGradients& gradients, const GatedNormInputs& inputs, const NormIncoming& incoming,
                       const Options& options) {
    gated_norm_backward(gradients, inputs, incoming.dy, options);
  }
};
using GatedNorm = WithoutSaved<GatedNormTables>;

}  // namespace headgate::python::jax
