// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headgate/linear_attention.hpp"
#include "verify/linear_attention_spec.hpp"
#include "verify/oracle/linear_attention.hpp"
#include "verify/slab.hpp"

namespace headgate::verify {

/// Holds the tensors of one test problem of linear attention. Inputs are filled from the seed, outputs with poison
/// bytes 0xFF. Views point into the object, so it cannot be copied or moved.
class LinearCase {
 public:
  explicit LinearCase(const LinearCaseSpec& spec, Placement placement = Placement::guarded,
                      Passes passes = Passes::forward_and_backward);
  LinearCase(const LinearCase&) = delete;
  LinearCase& operator=(const LinearCase&) = delete;

  const LinearCaseSpec& spec() const { return spec_; }
  /// Returns the inputs. If the problem is in place, a forward pass overwrites the input state; poison_outputs()
  /// restores it.
  const LinearAttentionInputs& inputs() const { return inputs_; }
  /// Returns the inputs of the forward pass: inputs(), and the lengths of the snapshots in outputs().
  LinearAttentionInputs forward_inputs() const;
  const LinearAttentionOptions& options() const { return options_; }
  LinearAttentionOptions& options() { return options_; }
  const LinearAttentionOutputs& outputs() const { return outputs_; }
  const LinearAttentionIncoming& incoming() const { return incoming_; }
  const LinearAttentionGradients& gradients() const { return gradients_; }

  void poison_outputs();
  void poison_gradients() { gradient_slabs_.poison(); }
  /// Returns the name of the first output or gradient with a byte written outside its view.
  std::optional<std::string> spilled() const;
  /// Return all bytes of the outputs and of the gradients, including the guard zones.
  std::vector<std::uint8_t> output_bytes() const { return output_slabs_.bytes(); }
  std::vector<std::uint8_t> gradient_bytes() const { return gradient_slabs_.bytes(); }

  /// Return the oracle's results, which are computed once and cached.
  const reference::LinearForward& expected_forward();
  const reference::LinearBackward& expected_backward();

 private:
  TensorView place(Slabs& group, const std::string& name, DType dtype, const Shape& shape, std::uint32_t repeats = 0);
  void place_projection(Slabs& group, const std::string& name, TensorView& q, TensorView& k, TensorView& v);
  void place_inputs();
  void place_incoming();
  void place_outputs();
  void place_gradients();
  void fill_rows(const TensorView& view, std::uint64_t stream);
  void fill_decay();
  void fill_beta();
  LinearAttentionInputs inputs_with(const TensorView& state) const;

  LinearCaseSpec spec_;
  Placement placement_;
  LinearAttentionOptions options_;
  Slabs input_slabs_, output_slabs_, gradient_slabs_;
  TensorView q_, k_, v_, decay_, beta_, state_, cu_seqlens_, snapshot_lengths_, dy_, dstate_;
  TensorView updated_state_;  // state of an in-place problem; the oracle reads S_0 from state_
  LinearAttentionInputs inputs_;
  LinearAttentionIncoming incoming_;
  LinearAttentionOutputs outputs_;
  LinearAttentionGradients gradients_;
  std::optional<reference::LinearForward> forward_;
  std::optional<reference::LinearBackward> backward_;
};

}  // namespace headgate::verify
