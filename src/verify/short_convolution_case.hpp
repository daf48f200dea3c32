// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headgate/short_convolution.hpp"
#include "verify/compare.hpp"
#include "verify/layout.hpp"
#include "verify/oracle/short_convolution.hpp"
#include "verify/pick.hpp"
#include "verify/slab.hpp"

namespace headgate::verify {

/// Bits of ConvolutionCaseSpec::absent_gradients.
enum ConvolutionGradientBit : unsigned {
  kConvolutionDx = 1,
  kConvolutionDweight = 2,
  kConvolutionDbias = 4,
  kConvolutionDstate = 8
};

/// The description of a problem of the short convolution, as CaseSpec is of attention. `ConvolutionCase` makes its
/// tensors. Of the options, context is set by ConvolutionCase: read `threads`.
struct ConvolutionCaseSpec : ShortConvolutionOptions {
  std::int64_t B = 1, T = 1, C = 1, K = 4;
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  bool channels_first = false;  // (B,C,T) memory, whatever the layout
  bool weight_f32 = false;      // else the dtype of x
  DType bias = DType::none;     // none, f32, the dtype of x

  DType state = DType::none;      // the old one: none, f32, the dtype of x
  DType new_state = DType::none;  // read only where it is not in place
  bool in_place = false;          // the new state is written where the old one is; only with a state
  DType dstate = DType::none;     // of the new state

  unsigned absent_gradients = 0;  // ConvolutionGradientBit
  int threads = 1;
  std::uint64_t seed = 1;
  DType cu_seqlens = DType::none;           // none, i32, i64: a packed batch of T tokens in all, B 1
  std::int64_t packed = 1;                  // its sequences; read only with cu_seqlens
  std::vector<std::int64_t> packed_tokens;  // their lengths, drawn from the seed where empty

  std::int64_t sequences() const { return cu_seqlens == DType::none ? B : packed; }
};

/// One line, every field that is not at its default.
std::string describe(const ConvolutionCaseSpec& spec);

/// Draws a spec by asking `pick`.
ConvolutionCaseSpec draw_convolution_spec(const Pick& pick);

/// draw_convolution_spec from a random sequence.
ConvolutionCaseSpec random_convolution_spec(std::uint64_t seed);

/// A fixed list that covers every number of taps, feature and dtype.
std::vector<ConvolutionCaseSpec> standard_convolution_cases();

/// A problem of the short convolution with its memory, as LinearCase is one of linear attention.
class ConvolutionCase {
 public:
  explicit ConvolutionCase(const ConvolutionCaseSpec& spec, Placement placement = Placement::guarded,
                           Passes passes = Passes::forward_and_backward);
  ConvolutionCase(const ConvolutionCase&) = delete;
  ConvolutionCase& operator=(const ConvolutionCase&) = delete;

  const ConvolutionCaseSpec& spec() const { return spec_; }
  /// A forward pass in place replaces the state among them, until poison_outputs() puts it back.
  const ShortConvolutionInputs& inputs() const { return inputs_; }
  ShortConvolutionOptions& options() { return options_; }
  const ShortConvolutionOutputs& outputs() const { return outputs_; }
  const ShortConvolutionIncoming& incoming() const { return incoming_; }
  const ShortConvolutionGradients& gradients() const { return gradients_; }

  void poison_outputs();
  void poison_gradients() { gradient_slabs_.poison(); }
  /// Returns the name of the first output or gradient with a write outside its view.
  std::optional<std::string> spilled() const;
  /// All bytes of the outputs and of the gradients, guards included.
  std::vector<std::uint8_t> written_bytes() const;

  /// The oracle's answers, computed once.
  const reference::ShortConvolutionForward& expected_forward();
  const reference::ShortConvolutionBackward& expected_backward();

 private:
  TensorView place(Slabs& group, const std::string& name, DType dtype, const Shape& shape, std::uint32_t repeats = 0);
  TensorView place_rows(Slabs& group, const std::string& name, std::uint32_t repeats = 0);
  TensorView place_state(Slabs& group, const std::string& name, DType dtype);
  void place_inputs();
  void place_outputs();
  void place_gradients();

  ConvolutionCaseSpec spec_;
  Placement placement_;
  ShortConvolutionOptions options_;
  Slabs input_slabs_, output_slabs_, gradient_slabs_;
  TensorView state_;                            // what a pass in place starts from
  ShortConvolutionInputs inputs_, for_oracle_;  // with the state as it is now, and as it was
  ShortConvolutionIncoming incoming_;
  ShortConvolutionOutputs outputs_;
  ShortConvolutionGradients gradients_;
  std::optional<reference::ShortConvolutionForward> forward_;
  std::optional<reference::ShortConvolutionBackward> backward_;
};

/// The functions that are checked: the library's own, or replacements in tests of the checks.
struct ConvolutionKernels {
  std::function<void(const ShortConvolutionOutputs&, const ShortConvolutionInputs&, const ShortConvolutionOptions&)>
      forward = short_convolution_forward;
  std::function<void(const ShortConvolutionGradients&, const ShortConvolutionInputs&, const ShortConvolutionIncoming&,
                     const ShortConvolutionOptions&)>
      backward = short_convolution_backward;
};

/// As check_linear_forward_case, check_linear_backward_case and check_linear_same_bits.
std::optional<std::string> check_forward_case(ConvolutionCase& problem, const ConvolutionKernels& kernels = {},
                                              WorstError* worst = nullptr);
std::optional<std::string> check_backward_case(ConvolutionCase& problem, const ConvolutionKernels& kernels = {},
                                               WorstError* worst = nullptr);
std::optional<std::string> check_same_bits(ConvolutionCase& problem, const ConvolutionKernels& kernels = {});

}  // namespace headgate::verify
