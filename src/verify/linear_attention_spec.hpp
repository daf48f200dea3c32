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

namespace headgate::verify {

/// The decay: none, (B,Hv,T,1) or (B,Hv,T,D).
enum class DecayInput { none, headwise, per_feature };

/// How much the state decays. normal: e^g between 0.07 and 0.99; strong: to nothing, g down to −1000; mixed: 0 beside
/// all of these and −∞.
enum class DecayStrength { normal, zero, strong, mixed };

/// β: none, (B,Hv,T,1), or (B,1,T,1) for all heads.
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

/// Bits of LinearCaseSpec::absent_gradients.
enum LinearGradientBit : unsigned {
  kLinearDq = 1,
  kLinearDk = 2,
  kLinearDv = 4,
  kLinearDdecay = 8,
  kLinearDbeta = 16,
  kLinearDstate = 32
};

/// The description of a problem of linear attention, as CaseSpec is of attention. `LinearCase` makes its tensors. Of
/// the options, context is set by LinearCase: read `threads`. Keys have a length of 0.6 to 1, so that the recurrence is
/// stable; with l2_norm, any length.
struct LinearCaseSpec : LinearAttentionOptions {
  std::int64_t B = 1, Hq = 1, Hk = 1, Hv = 1, T = 1, D = 1, Dv = 1;
  DType dtype = DType::f32;
  Layout layout = Layout::bhtd;
  bool correlated_keys = false;   // all keys of a head lean in one direction
  bool zero_keys_at_end = false;  // those of the last tokens are 0: behind a strong decay the state ends as zeros

  DecayInput decay = DecayInput::none;
  bool decay_f32 = false;  // else the dtype of q
  DecayStrength strength = DecayStrength::normal;
  BetaInput beta = BetaInput::none;
  bool beta_f32 = false;     // else the dtype of q
  bool beta_to_two = false;  // β in (0,2), else in (0,1)

  DType state = DType::none;      // S_0: none, f32, f64
  DType new_state = DType::none;  // S_T: none, f32, f64; read only where it is not in place
  bool in_place = false;          // S_T is written where S_0 is; only with a state
  DType dstate = DType::none;     // of S_T: none, f32, f64

  unsigned absent_gradients = 0;  // LinearGradientBit
  int threads = 1;
  std::uint64_t seed = 1;
  DType cu_seqlens = DType::none;           // none, i32, i64: a packed batch of T tokens in all, B 1
  std::int64_t packed = 1;                  // its sequences; read only with cu_seqlens
  std::vector<std::int64_t> packed_tokens;  // their lengths, drawn from the seed where empty

  std::int64_t Ho() const { return Hq > Hv ? Hq : Hv; }
  std::int64_t sequences() const { return cu_seqlens == DType::none ? B : packed; }
  bool has_delta() const { return rule == LinearRule::delta || rule == LinearRule::gated_delta; }
  bool may_decay() const { return rule == LinearRule::gated || rule == LinearRule::gated_delta; }
};

/// One line, every field that is not at its default.
std::string describe(const LinearCaseSpec& spec);

/// Draws a spec by asking `pick`.
LinearCaseSpec draw_linear_spec(const Pick& pick);

/// draw_linear_spec from a random sequence.
LinearCaseSpec random_linear_spec(std::uint64_t seed);

/// A fixed list that covers every feature and dtype, and sizes around chunks and vectors.
std::vector<LinearCaseSpec> standard_linear_cases();

}  // namespace headgate::verify
