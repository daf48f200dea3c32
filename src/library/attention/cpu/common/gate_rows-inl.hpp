// SPDX-License-Identifier: Apache-2.0
// Applies the gate to rows, forward and backward; included once per Highway target.
#if defined(HEADGATE_ATTENTION_GATE_ROWS_INL_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADGATE_ATTENTION_GATE_ROWS_INL_
#undef HEADGATE_ATTENTION_GATE_ROWS_INL_
#else
#define HEADGATE_ATTENTION_GATE_ROWS_INL_
#endif

#include <algorithm>
#include <cstdint>

#include "library/attention/cpu/common/rows-inl.hpp"
#include "library/core/gate_functions-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace headgate::HWY_NAMESPACE {

/// Returns the Dv gate logits of row i, zero-padded to whole vectors. A headwise gate's single logit is repeated Dv
/// times.
/// Returns an address in the tensor if the layout allows this, otherwise copies the logits to `buffer`.
template <typename T>
const T* gate_logits(const HeadRows<const void>& gate, std::int64_t i, std::int64_t Dv, T* HWY_RESTRICT buffer) {
  if (gate.cols == Dv) return padded_row(gate, i, buffer);
  load_row(buffer, gate, i, 0, 1);
  std::fill(buffer + 1, buffer + Dv, buffer[0]);
  std::fill(buffer + Dv, buffer + round_up(Dv, kLanes<T>), T{0});
  return buffer;
}

/// Computes y[x] = o[x] · g(z[x]), or o[x] + g(z[x]) for an additive gate. n is rounded up to whole vectors.
/// fn must not be GateFn::none.
template <typename T>
HWY_NOINLINE void gate_row_forward(T* HWY_RESTRICT y, const T* HWY_RESTRICT o, const T* HWY_RESTRICT z, std::int64_t n,
                                   GateFn fn, GateOp op) {
  with_gate(fn, [&](auto gate) HWY_ATTR {
    const Tag<T> d;
    for (std::int64_t x = 0; x < n; x += kLanes<T>) {
      const auto g = gate.value(d, hn::LoadU(d, z + x));
      const auto ov = hn::LoadU(d, o + x);
      hn::StoreU(op == GateOp::mul ? hn::Mul(ov, g) : hn::Add(ov, g), d, y + x);
    }
  });
}

/// Operands and results of gate_rows_forward(): y = (o · factors) ∘ g(z), or (o · factors) + g(z) for an additive gate.
/// Strides are in elements, and rows are whole vectors. y and z are stored as T or bf16. z is null if there is no gate.
template <typename T, typename Stored>
struct GatedRows {
  Stored* y;
  std::int64_t y_stride;
  const T* o;
  std::int64_t o_stride;
  const Stored* z;
  std::int64_t z_stride;
  const T* factors;  ///< factor of each row of o, applied before the gate
};

/// Applies the gate to `rows` rows of n elements. Requires that n is a multiple of the lanes.
template <typename T, typename Stored>
HWY_NOINLINE void gate_rows_forward(const GatedRows<T, Stored>& tile, std::int64_t rows, std::int64_t n, GateFn fn,
                                    GateOp op) {
  const Tag<T> d;
  const auto each_row = [&](const auto& gated) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto factor = hn::Set(d, tile.factors[r]);
      const T* HWY_RESTRICT o = tile.o + r * tile.o_stride;
      Stored* HWY_RESTRICT y = tile.y + r * tile.y_stride;
      for (std::int64_t x = 0; x < n; x += kLanes<T>)
        store_as<T>(gated(hn::Mul(hn::LoadU(d, o + x), factor), r * tile.z_stride + x), y + x);
    }
  };
  if (tile.z == nullptr) {
    each_row([](auto o, std::int64_t /*at*/) HWY_ATTR { return o; });
    return;
  }
  const Stored* HWY_RESTRICT z = tile.z;
  with_gate(fn, [&](auto gate) HWY_ATTR {
    if (op == GateOp::mul) {
      each_row([&](auto o, std::int64_t at) HWY_ATTR { return hn::Mul(o, gate.value(d, load_as<T>(z + at))); });
    } else {
      each_row([&](auto o, std::int64_t at) HWY_ATTR { return hn::Add(o, gate.value(d, load_as<T>(z + at))); });
    }
  });
}

/// Operands and results of the gate's backward pass for one query.
/// Rows have Dv elements, rounded up to vectors. The padding of operands is zero.
template <typename T>
struct GateRowOperands {
  const T* dy;  ///< incoming gradient
  const T* y;   ///< saved output
  const T* o;   ///< ungated output, or null if it was not saved
  const T* z;   ///< gate logits; not read if there is no gate
  T* d_o;       ///< result: gradient of the ungated output
  T* dz;        ///< result: gradient of the gate logits; not written if there is no gate
};

/// Implements gate_rows_backward() for one row. Returns Δ = rowsum(d_o ∘ o).
template <typename T, class Gate>
HWY_INLINE T gate_row_backward_with(Gate gate, const GateRowOperands<T>& row, std::int64_t n, GateOp op) {
  const Tag<T> d;
  auto delta = hn::Zero(d);
  for (std::int64_t x = 0; x < n; x += kLanes<T>) {
    const auto dy = hn::LoadU(d, row.dy + x);
    const auto y = hn::LoadU(d, row.y + x);
    const auto z = hn::LoadU(d, row.z + x);
    const auto g = gate.value(d, z);
    if (op == GateOp::add) {
      const auto o = row.o != nullptr ? hn::LoadU(d, row.o + x) : hn::Sub(y, g);
      hn::StoreU(dy, d, row.d_o + x);
      delta = hn::MulAdd(dy, o, delta);
      hn::StoreU(hn::Mul(dy, gate.derivative(d, z)), d, row.dz + x);
      continue;
    }
    hn::StoreU(hn::Mul(dy, g), d, row.d_o + x);
    const auto dy_y = hn::Mul(dy, y);
    delta = hn::Add(delta, dy_y);
    if constexpr (!decltype(gate)::kHasZero) {
      if (row.o == nullptr) {
        hn::StoreU(hn::Mul(dy_y, gate.ratio(d, z)), d, row.dz + x);
        continue;
      }
    }
    hn::StoreU(hn::Mul(hn::Mul(dy, hn::LoadU(d, row.o + x)), gate.derivative(d, z)), d, row.dz + x);
  }
  return hn::GetLane(hn::SumOfLanes(d, delta));
}

/// Computes the gate's backward pass for rows row_of(0) … row_of(rows − 1).
/// Stores Δ = rowsum(d_o ∘ o) of row r in deltas[r]. Rows have n elements, a multiple of the lanes.
/// g is the gate function at the logits z, and g′ is its derivative.
///   mul: y = o ∘ g, d_o = dy ∘ g, dz = dy ∘ o ∘ g′, Δ = rowsum(dy ∘ y). If o was not saved, dz = dy ∘ y ∘ g′/g.
///   add: y = o + g, d_o = dy, dz = dy ∘ g′, Δ = rowsum(dy ∘ o). If o was not saved, o = y − g.
template <typename T, class RowOf>
HWY_INLINE void gate_rows_backward(const RowOf& row_of, std::int64_t rows, std::int64_t n, GateFn fn, GateOp op,
                                   T* HWY_RESTRICT deltas) {
  if (fn == GateFn::none) {
    const Tag<T> d;
    for (std::int64_t r = 0; r < rows; ++r) {
      const GateRowOperands<T> row = row_of(r);
      auto delta = hn::Zero(d);
      for (std::int64_t x = 0; x < n; x += kLanes<T>) {
        const auto dy = hn::LoadU(d, row.dy + x);
        hn::StoreU(dy, d, row.d_o + x);
        delta = hn::MulAdd(dy, hn::LoadU(d, row.y + x), delta);
      }
      deltas[r] = hn::GetLane(hn::SumOfLanes(d, delta));
    }
    return;
  }
  with_gate(fn, [&](auto gate) HWY_ATTR {
    for (std::int64_t r = 0; r < rows; ++r) deltas[r] = gate_row_backward_with(gate, row_of(r), n, op);
  });
}

/// Calls gate_rows_backward() for one row. Returns Δ = rowsum(d_o ∘ o).
template <typename T>
HWY_NOINLINE T gate_row_backward(const GateRowOperands<T>& row, std::int64_t n, GateFn fn, GateOp op) {
  T delta = 0;
  gate_rows_backward([&row](std::int64_t /*r*/) HWY_ATTR { return row; }, 1, n, fn, op, &delta);
  return delta;
}

}  // namespace headgate::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HEADGATE_ATTENTION_GATE_ROWS_INL_
