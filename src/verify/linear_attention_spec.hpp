// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "library/core/words.hpp"
#include "verify/layout.hpp"
#include "verify/pick.hpp"
#include "verify/snapshot_spec.hpp"

namespace headgate::verify {

/// Shape of the decay g: none, (B,Hv,T,1) or (B,Hv,T,D).
enum class DecayInput { none, headwise, per_feature };

/// Strength of the state's decay e^g.
/// - normal: e^g is between 0.07 and 0.99
/// - zero: g is 0
/// - strong: g is from −10 to −1000, which clears the state
/// - mixed: all of these and −∞
enum class DecayStrength { normal, zero, strong, mixed };

/// Shape of β: none, (B,Hv,T,1), or (B,1,T,1) for one β shared by all heads.
enum class BetaInput { none, headwise, shared };

}  // namespace headgate::verify

namespace headgate {

template <>
struct Words<verify::DecayInput> {
  static constexpr std::array<Word<verify::DecayInput>, 3> kAll{{{verify::DecayInput::none, "none"},
                                                                 {verify::DecayInput::headwise, "headwise"},
                                                                 {verify::DecayInput::per_feature, "per_feature"}}};
};

template <>
struct Words<verify::DecayStrength> {
  static constexpr std::array<Word<verify::DecayStrength>, 4> kAll{{{verify::DecayStrength::normal, "normal"},
                                                                    {verify::DecayStrength::zero, "zero"},
                                                                    {verify::DecayStrength::strong, "strong"},
                                                                    {verify::DecayStrength::mixed, "mixed"}}};
};

template <>
struct Words<verify::BetaInput> {
  static constexpr std::array<Word<verify::BetaInput>, 3> kAll{{{verify::BetaInput::none, "none"},
                                                                {verify::BetaInput::headwise, "headwise"},
                                                                {verify::BetaInput::shared, "shared"}}};
};

}  // namespace headgate

namespace headgate::verify {

/// Bits of LinearCaseSpec::absent_gradients, one for each gradient. A set bit omits the gradient.
enum LinearGradientBit : unsigned {
  kLinearDq = 1,
  kLinearDk = 2,
  kLinearDv = 4,
  kLinearDdecay = 8,
  kLinearDbeta = 16,
  kLinearDstate = 32
};

/// Describes a test problem of linear attention. LinearCase creates the problem's tensors.
/// LinearCase also sets the option `context`, from `threads`.
/// Without l2_norm, keys have a norm of 0.6 to 1, so that the recurrence is stable. With l2_norm, they have any norm.
struct LinearCaseSpec : LinearAttentionOptions {
  std::int64_t B = 1, Hq = 1, Hk = 1, Hv = 1, T = 1, D = 1, Dv = 1;
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  bool correlated_keys = false;   // true: the keys of a head share a common component
  bool zero_keys_at_end = false;  // true: the last two keys are 0, so that a strong decay can clear the final state

  DecayInput decay = DecayInput::none;
  bool decay_f32 = false;  // true: decay is f32; false: the dtype of q
  DecayStrength strength = DecayStrength::normal;
  BetaInput beta = BetaInput::none;
  bool beta_f32 = false;     // true: β is f32; false: the dtype of q
  bool beta_to_two = false;  // true: β is in (0,2); false: in (0,1)

  DType state = DType::none;      // dtype of the initial state S_0: none, f32 or f64
  DType new_state = DType::none;  // dtype of the final state S_T: none, f32 or f64; ignored if in_place
  bool in_place = false;          // true: the final state overwrites the initial state; requires `state`
  DType dstate = DType::none;     // dtype of the final state's gradient: none, f32 or f64

  unsigned absent_gradients = 0;  // LinearGradientBit
  int threads = 1;
  std::uint64_t seed = 1;
  DType cu_seqlens = DType::none;  // dtype of cu_seqlens: none, or i32/i64 for a packed batch of T tokens, B = 1
  std::int64_t packed = 1;         // number of packed sequences; read only with cu_seqlens
  std::vector<std::int64_t> packed_tokens;  // lengths of the packed sequences; drawn from the seed if empty
  SnapshotSpec snapshots;

  std::int64_t Ho() const { return Hq > Hv ? Hq : Hv; }
  std::int64_t sequences() const { return cu_seqlens == DType::none ? B : packed; }
  bool has_delta() const { return rule == LinearRule::delta || rule == LinearRule::gated_delta; }
  /// Returns the dtype whose roundoff bounds the errors of y and the states.
  /// With f32 snapshots, this is f32: the pass continues from its snapshots, which rounds even f64 states to f32.
  DType rounds_as() const { return snapshots.dtype == DType::f32 ? DType::f32 : dtype; }
  bool may_decay() const { return rule == LinearRule::gated || rule == LinearRule::gated_delta; }
};

/// Returns one line with the sizes and every field that differs from its default.
std::string describe(const LinearCaseSpec& spec);

/// Draws a spec with random numbers from `pick`.
LinearCaseSpec draw_linear_spec(const Pick& pick);

/// Draws a spec from random numbers seeded with `seed`.
LinearCaseSpec random_linear_spec(std::uint64_t seed);

/// Returns a fixed list of problems that covers every option and dtype, and sizes near chunk and vector lengths.
std::vector<LinearCaseSpec> standard_linear_cases();

}  // namespace headgate::verify
