// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "verify/linear_attention_spec.hpp"
#include "verify/operation_case.hpp"
#include "verify/oracle/linear_attention.hpp"

namespace headgate::verify {

/// Holds the tensors of one test problem of linear attention. Inputs are filled from the seed. If the problem is in
/// place, a forward pass overwrites the input state; poison_outputs() restores it.
class LinearCase
    : public OperationCase<LinearCaseSpec, LinearAttentionInputs, LinearAttentionOptions, LinearAttentionGradients> {
 public:
  explicit LinearCase(const LinearCaseSpec& spec, Placement placement = Placement::guarded,
                      Passes passes = Passes::forward_and_backward);

  /// Returns the inputs of the forward pass: those of inputs(), and the snapshot lengths.
  LinearAttentionInputs forward_inputs() const;
  const LinearAttentionOutputs& outputs() const { return outputs_; }
  const LinearAttentionIncoming& incoming() const { return incoming_; }

  void poison_outputs();

  /// Return the oracle's results, which are computed once and cached.
  const reference::LinearForward& expected_forward();
  const reference::LinearBackward& expected_backward();

 private:
  void place_projection(Slabs& group, const std::string& name, TensorView& q, TensorView& k, TensorView& v);
  void place_inputs();
  void place_incoming();
  void place_outputs();
  void place_gradients();
  void fill_rows(const TensorView& view, std::uint64_t stream);
  void fill_decay();
  void fill_beta();
  LinearAttentionInputs inputs_with(const TensorView& state) const;

  TensorView q_, k_, v_, decay_, beta_, state_, cu_seqlens_, snapshot_lengths_, dy_, dstate_;
  TensorView updated_state_;  // the state that an in-place pass overwrites; state_ keeps the initial state
  LinearAttentionIncoming incoming_;
  LinearAttentionOutputs outputs_;
  std::optional<reference::LinearForward> forward_;
  std::optional<reference::LinearBackward> backward_;
};

}  // namespace headgate::verify
