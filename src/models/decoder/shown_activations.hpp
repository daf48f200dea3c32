// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "library/core/workspace.hpp"
#include "models/decoder/decoder_buffers.hpp"
#include "models/layers/arguments.hpp"
#include "models/layers/parallel.hpp"
#include "models/layers/widen.hpp"

// Converts bf16 activations to f32 for observers.

namespace headgate::models {

/// Views f32 buffers for the activations of one layer, one buffer per tensor. The buffers exist only if activations are
/// bf16.
template <typename T>
struct ShownBuffers {
  ShownBuffers(Workspace& ws, const DecoderSizes& sizes) {
    if constexpr (kNarrow<T>) {
      std::int64_t value = 0, gate = 0, output = 0;  // largest number of elements per token in any attention layer
      for (const auto& attention : {sizes.full, sizes.sliding}) {
        if (!attention) continue;
        value = std::max(value, attention->Hkv * attention->D);
        gate = std::max(gate, layers::gate_logits(*attention).count());
        output = std::max(output, attention->Hq * attention->D);
      }
      const std::int64_t delta = sizes.linear ? sizes.linear->Hv * sizes.linear->Dv : 0;
      constexpr const char* kName = "activations shown, one layer";
      values = ws.take<float>(kName, sizes.N * std::max(value, delta));
      gates = ws.take<float>(kName, sizes.N * std::max(gate, delta));
      outputs = ws.take<float>(kName, sizes.N * std::max(output, delta));
    }
  }

  View<float, 1> values, gates, outputs;
};

/// Returns x(N,H,F) in f32 or f64. If x is bf16, writes an f32 copy to `memory` and returns the copy. If the token
/// stride of x is 0, so is that of the result.
template <typename T>
View<const Wide<T>, 3> shown(const View<float, 1>& memory, const View<const T, 3>& x, const ExecutionContext& context) {
  if constexpr (!kNarrow<T>) {
    return x;
  } else {
    if (!x.present()) return {};
    const std::int64_t N = x.shape[0], H = x.shape[1], F = x.shape[2];
    const std::int64_t rows = x.strides[0] == 0 ? 1 : N;
    const View<float, 3> out(memory.data, {rows, H, F});
    layers::for_parts(layers::parts_of(context, rows, H * F),
                      [&](std::int64_t /*part*/, std::int64_t begin, std::int64_t end) {
                        for (std::int64_t n = begin; n < end; ++n) {
                          for (std::int64_t h = 0; h < H; ++h) layers::widen(out.at(n, h), x.at(n, h), F);
                        }
                      });
    return {out.data, x.shape, {rows == N ? H * F : 0, F, 1}};
  }
}

/// Converts activations for observers. Owns the memory for f32 copies of bf16 activations.
template <typename T>
class ShownActivations {
 public:
  /// `context` must outlive this object.
  ShownActivations(const DecoderSizes& sizes, Purpose purpose, const ExecutionContext& context) : context_(context) {
    if (kNarrow<T> && purpose == Purpose::evaluate) memory_.emplace(sizes);
  }

  View<const Wide<T>, 3> values(const View<const T, 3>& x) const { return shown_in(&ShownBuffers<T>::values, x); }
  View<const Wide<T>, 3> gates(const View<const T, 3>& x) const { return shown_in(&ShownBuffers<T>::gates, x); }
  View<const Wide<T>, 3> outputs(const View<const T, 3>& x) const { return shown_in(&ShownBuffers<T>::outputs, x); }

  std::size_t bytes() const { return memory_ ? memory_->bytes() : 0; }

 private:
  View<const Wide<T>, 3> shown_in(View<float, 1> ShownBuffers<T>::*buffer, const View<const T, 3>& x) const {
    return shown<T>(memory_ ? (**memory_).*buffer : View<float, 1>(), x, context_);
  }

  const ExecutionContext& context_;
  std::optional<Placed<ShownBuffers<T>, Block>> memory_;
};

}  // namespace headgate::models
