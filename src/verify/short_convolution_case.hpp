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
#include "verify/operation_case.hpp"
#include "verify/oracle/short_convolution.hpp"
#include "verify/pick.hpp"
#include "verify/snapshot_spec.hpp"

namespace headgate::verify {

/// Bits of ConvolutionCaseSpec::absent_gradients, one for each gradient. A set bit omits the gradient.
enum ConvolutionGradientBit : unsigned {
  kConvolutionDx = 1,
  kConvolutionDweight = 2,
  kConvolutionDbias = 4,
  kConvolutionDstate = 8
};

/// Describes a test problem of the short convolution.
/// ConvolutionCase creates the problem's tensors, and sets the option `context` from `threads`.
struct ConvolutionCaseSpec : ShortConvolutionOptions {
  std::int64_t B = 1, T = 1, C = 1, K = 4;
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  bool channels_first = false;  // true: x and y are in (B,C,T) order in memory, regardless of `layout`
  bool weight_f32 = false;      // true: weight is f32; false: the dtype of x
  DType bias = DType::none;     // dtype of bias: none, f32 or the dtype of x

  DType state = DType::none;      // dtype of the initial state: none, f32 or the dtype of x
  DType new_state = DType::none;  // dtype of the new state; ignored if in_place
  bool in_place = false;          // true: the new state overwrites the initial state; requires `state`
  DType dstate = DType::none;     // dtype of the gradient of the new state

  unsigned absent_gradients = 0;  // ConvolutionGradientBit
  int threads = 1;
  std::uint64_t seed = 1;
  DType cu_seqlens = DType::none;  // dtype of cu_seqlens: none, or i32/i64 for a packed batch of T tokens, B = 1
  std::int64_t packed = 1;         // number of packed sequences; read only with cu_seqlens
  std::vector<std::int64_t> packed_tokens;  // lengths of the packed sequences; drawn from the seed if empty
  SnapshotSpec snapshots;

  std::int64_t sequences() const { return cu_seqlens == DType::none ? B : packed; }
};

/// Returns one line with the sizes and every field that differs from its default.
std::string describe(const ConvolutionCaseSpec& spec);

/// Draws a spec with random numbers from `pick`.
ConvolutionCaseSpec draw_convolution_spec(const Pick& pick);

/// Draws a spec from random numbers seeded with `seed`.
ConvolutionCaseSpec random_convolution_spec(std::uint64_t seed);

/// Returns a fixed list of problems that covers every number of taps, option and dtype.
std::vector<ConvolutionCaseSpec> standard_convolution_cases();

/// Holds the tensors of one test problem of the short convolution. Inputs are filled from the seed. If the problem is
/// in place, a forward pass overwrites the input state; poison_outputs() restores it.
class ConvolutionCase : public OperationCase<ConvolutionCaseSpec, ShortConvolutionInputs, ShortConvolutionOptions,
                                             ShortConvolutionGradients> {
 public:
  explicit ConvolutionCase(const ConvolutionCaseSpec& spec, Placement placement = Placement::guarded,
                           Passes passes = Passes::forward_and_backward);

  /// Returns the inputs of the forward pass: those of inputs(), and the snapshot lengths.
  ShortConvolutionInputs forward_inputs() const;
  const ShortConvolutionOutputs& outputs() const { return outputs_; }
  const ShortConvolutionIncoming& incoming() const { return incoming_; }

  void poison_outputs();

  /// Return the oracle's results, which are computed once and cached.
  const reference::ShortConvolutionForward& expected_forward();
  const reference::ShortConvolutionBackward& expected_backward();

 private:
  TensorView place_rows(Slabs& group, const std::string& name, std::uint32_t repeats = 0);
  TensorView place_state(Slabs& group, const std::string& name, DType dtype, std::int64_t each = 1);
  void place_inputs();
  void place_outputs();
  void place_gradients();

  TensorView snapshot_lengths_;
  TensorView state_;                   // the initial state; an in-place pass overwrites a copy of it
  ShortConvolutionInputs for_oracle_;  // as inputs_, but always with state_ as the initial state
  ShortConvolutionIncoming incoming_;
  ShortConvolutionOutputs outputs_;
  std::optional<reference::ShortConvolutionForward> forward_;
  std::optional<reference::ShortConvolutionBackward> backward_;
};

/// The functions to check. By default, these are the functions of the library; tests of the checks replace them.
struct ConvolutionKernels {
  std::function<void(const ShortConvolutionOutputs&, const ShortConvolutionInputs&, const ShortConvolutionOptions&)>
      forward = short_convolution_forward;
  std::function<void(const ShortConvolutionGradients&, const ShortConvolutionInputs&, const ShortConvolutionIncoming&,
                     const ShortConvolutionOptions&)>
      backward = short_convolution_backward;
};

/// Check the forward pass and the gradients against the oracle, and that results are bitwise identical with one thread
/// and with three. Each function returns the first mismatch.
std::optional<std::string> check_forward_case(ConvolutionCase& problem, const ConvolutionKernels& kernels = {},
                                              WorstError* worst = nullptr);
std::optional<std::string> check_backward_case(ConvolutionCase& problem, const ConvolutionKernels& kernels = {},
                                               WorstError* worst = nullptr);
std::optional<std::string> check_same_bits(ConvolutionCase& problem, const ConvolutionKernels& kernels = {});

}  // namespace headgate::verify
