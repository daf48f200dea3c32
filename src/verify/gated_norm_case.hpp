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
#include "verify/operation_case.hpp"
#include "verify/oracle/gated_norm.hpp"
#include "verify/pick.hpp"

namespace headgate::verify {

/// Bits of NormCaseSpec::absent_gradients, one for each gradient. A set bit omits the gradient.
enum NormGradientBit : unsigned { kNormDx = 1, kNormDweight = 2, kNormDgate = 4 };

/// Describes a test problem of the gated norm. NormCase creates the problem's tensors.
/// NormCase also sets the option `context`, from `threads`.
struct NormCaseSpec : GatedNormOptions {
  std::int64_t B = 1, H = 1, T = 1, D = 1;
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  DType weight = DType::none;   // dtype of weight: none, f32 or the dtype of x
  bool weight_of_head = false;  // weight has shape (1,H,1,D) if set, otherwise (1,1,1,D)
  DType gate = DType::none;     // dtype of gate: none, f32 or the dtype of x
  double magnitude = 1.0;       // standard deviation of x

  unsigned absent_gradients = 0;  // NormGradientBit
  int threads = 1;
  std::uint64_t seed = 1;

  bool is_gated() const { return gate != DType::none && gate_fn != GateFn::none; }
};

/// Returns one line with the sizes and every field that differs from its default.
std::string describe(const NormCaseSpec& spec);

/// Draws a spec with random numbers from `pick`.
NormCaseSpec draw_norm_spec(const Pick& pick);

/// Draws a spec from random numbers seeded with `seed`.
NormCaseSpec random_norm_spec(std::uint64_t seed);

/// Returns a fixed list of problems that covers every gate function, option and dtype.
std::vector<NormCaseSpec> standard_norm_cases();

/// Holds the tensors of one test problem of the gated norm. Inputs are filled from the seed.
class NormCase : public OperationCase<NormCaseSpec, GatedNormInputs, GatedNormOptions, GatedNormGradients> {
 public:
  explicit NormCase(const NormCaseSpec& spec, Placement placement = Placement::guarded,
                    Passes passes = Passes::forward_and_backward);

  const TensorView& y() const { return y_; }
  const ConstTensorView& dy() const { return dy_; }

  /// Return the oracle's results, which are computed once and cached.
  const reference::GatedNormForward& expected_forward();
  const reference::GatedNormBackward& expected_backward();

 private:
  void place_inputs();
  void place_gradients();

  TensorView y_;
  ConstTensorView dy_;
  std::optional<reference::GatedNormForward> forward_;
  std::optional<reference::GatedNormBackward> backward_;
};

/// The functions to check. By default, these are the functions of the library; tests of the checks replace them.
struct NormKernels {
  std::function<void(const TensorView&, const GatedNormInputs&, const GatedNormOptions&)> forward = gated_norm_forward;
  std::function<void(const GatedNormGradients&, const GatedNormInputs&, const ConstTensorView&,
                     const GatedNormOptions&)>
      backward = gated_norm_backward;
};

/// Check the forward pass and the gradients against the oracle, and that results are bitwise identical with one thread
/// and with three. Each function returns the first mismatch.
std::optional<std::string> check_forward_case(NormCase& problem, const NormKernels& kernels = {},
                                              WorstError* worst = nullptr);
std::optional<std::string> check_backward_case(NormCase& problem, const NormKernels& kernels = {},
                                               WorstError* worst = nullptr);
std::optional<std::string> check_same_bits(NormCase& problem, const NormKernels& kernels = {});

}  // namespace headgate::verify
