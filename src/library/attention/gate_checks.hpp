// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "headgate/attention.hpp"
#include "library/call/call.hpp"
#include "library/call/gate_fn_check.hpp"

// These functions check arguments that attention and attention_merge have in common.

namespace headgate {

/// Checks the gate logits. Their shape must be (B,Hq,T,1), or `elementwise`, which is (B,Hq,T,Dv).
/// Their dtype must be `dtype` or f32.
inline void check_gate_logits(Call& call, const Argument& gate, DType dtype, const Shape& elementwise) {
  call.input(gate, {dtype, DType::f32});
  const Shape headwise{elementwise[0], elementwise[1], elementwise[2], 1};
  if (gate.view.shape != headwise && gate.view.shape != elementwise) {
    call.fail("gate has shape {} but must be (B,Hq,T,1) = {} or (B,Hq,T,Dv) = {}", shape_text(gate.view.shape),
              shape_text(headwise), shape_text(elementwise));
  }
}

template <typename T>
void check_rows_computed_of(const Call& call, const Argument& lse) {
  const auto& [B, Hq, rows, one] = lse.view.shape;
  const auto& [b_stride, h_stride, stride, last_stride] = lse.view.strides;
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t h = 0; h < Hq; ++h) {
      const T* head = static_cast<const T*>(lse.view.data) + b * b_stride + h * h_stride;
      for (std::int64_t i = 0; i < rows; ++i) {
        if (head[i * stride] != std::numeric_limits<T>::infinity()) continue;
        call.fail(
            "{}[{},{},{}] is inf: gate_threshold left this row out of the forward pass, or its scores or sinks "
            "overflowed",
            lse.name, b, h, i);
      }
    }
  }
}

/// Fails if an element of lse (B,Hq,T,1) is +∞, which marks a row that was skipped.
/// Call it after the other checks of lse, because it reads the elements.
inline void check_rows_computed(const Call& call, const Argument& lse) {
  if (lse.view.numel() == 0) return;
  if (lse.view.dtype == DType::f64) return check_rows_computed_of<double>(call, lse);
  check_rows_computed_of<float>(call, lse);
}

inline void check_gate_choice(const Call& call, GateFn fn, GateOp op) {
  check_gate_fn(call, fn);
  check_enum(call, "gate_op", op, GateOp::add);
}

}  // namespace headgate
