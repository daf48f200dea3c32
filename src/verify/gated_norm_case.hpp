// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "headgate/gated_norm.hpp"
#include "verify/compare.hpp"
#include "verify/layout.hpp"
#include "verify/oracle/gated_norm.hpp"
#include "verify/pick.hpp"
#include "verify/slab.hpp"

namespace headgate::verify {

/// Bits of NormCaseSpec::absent_gradients.
enum NormGradientBit : unsigned { kNormDx = 1, kNormDweight = 2, kNormDgate = 4 };

/// The description of a problem of the gated norm, as CaseSpec is of attention. `NormCase` makes its tensors. Of the
/// options, context is set by NormCase: read `threads`.
struct NormCaseSpec : GatedNormOptions {
  std::int64_t B = 1, H = 1, T = 1, D = 1;
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  DType weight = DType::none;   // none, f32, the dtype of x
  bool weight_of_head = false;  // (1,H,1,D), else (1,1,1,D)
  DType gate = DType::none;     // none, f32, the dtype of x
  double magnitude = 1.0;       // of x

  unsigned absent_gradients = 0;  // NormGradientBit
  int threads = 1;
  std::uint64_t seed = 1;

  bool is_gated() const { return gate != DType::none && gate_fn != GateFn::none; }
};

/// One line, every field that is not at its default.
std::string describe(const NormCaseSpec& spec);

/// Draws a spec by asking `pick`.
NormCaseSpec draw_norm_spec(const Pick& pick);

/// draw_norm_spec from a random sequence.
NormCaseSpec random_norm_spec(std::uint64_t seed);

/// A fixed list that covers every gate function, feature and dtype.
std::vector<NormCaseSpec> standard_norm_cases();

/// A problem of the gated norm with its memory, as LinearCase is one of linear attention.
class NormCase {
 public:
  explicit NormCase(const NormCaseSpec& spec, Placement placement = Placement::guarded,
                    Passes passes = Passes::forward_and_backward);
  NormCase(const NormCase&) = delete;
  NormCase& operator=(const NormCase&) = delete;

  const NormCaseSpec& spec() const { return spec_; }
  const GatedNormInputs& inputs() const { return inputs_; }
  GatedNormOptions& options() { return options_; }
  const TensorView& y() const { return y_; }
  const ConstTensorView& dy() const { return dy_; }
  const GatedNormGradients& gradients() const { return gradients_; }

  void poison_outputs();
  /// Returns the name of the first output or gradient with a write outside its view.
  std::optional<std::string> spilled() const;
  /// All bytes of the output and of the gradients, guards included.
  std::vector<std::uint8_t> written_bytes() const;

  /// The oracle's answers, computed once.
  const reference::GatedNormForward& expected_forward();
  const reference::GatedNormBackward& expected_backward();

 private:
  TensorView place(Slabs& group, const std::string& name, DType dtype, const Shape& shape, std::uint32_t repeats = 0);
  void place_inputs();
  void place_gradients();

  NormCaseSpec spec_;
  Placement placement_;
  GatedNormOptions options_;
  Slabs input_slabs_, output_slabs_, gradient_slabs_;
  GatedNormInputs inputs_;
  TensorView y_;
  ConstTensorView dy_;
  GatedNormGradients gradients_;
  std::optional<reference::GatedNormForward> forward_;
  std::optional<reference::GatedNormBackward> backward_;
};

/// The functions that are checked: the library's own, or replacements in tests of the checks.
struct NormKernels {
  std::function<void(const TensorView&, const GatedNormInputs&, const GatedNormOptions&)> forward = gated_norm_forward;
  std::function<void(const GatedNormGradients&, const GatedNormInputs&, const ConstTensorView&,
                     const GatedNormOptions&)>
      backward = gated_norm_backward;
};

/// As check_linear_forward_case, check_linear_backward_case and check_linear_same_bits.
std::optional<std::string> check_forward_case(NormCase& problem, const NormKernels& kernels = {},
                                              WorstError* worst = nullptr);
std::optional<std::string> check_backward_case(NormCase& problem, const NormKernels& kernels = {},
                                               WorstError* worst = nullptr);
std::optional<std::string> check_same_bits(NormCase& problem, const NormKernels& kernels = {});

}  // namespace headgate::verify
