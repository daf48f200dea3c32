// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "headgate/attention.hpp"
#include "library/core/view.hpp"
#include "library/core/workspace.hpp"
#include "models/layers/activation_rounding.hpp"
#include "models/layers/arguments.hpp"

// Defines the sizes and the buffers of a Gated DeltaNet layer. Some buffers are saved per layer for the backward pass,
// others are shared by all layers of a model.

namespace headgate::layers {

struct DeltaNetShape {
  std::int64_t B = 0, T = 0, C = 0;   ///< B sequences of T tokens with C channels
  std::int64_t Hk = 0, Hv = 0;        ///< number of key heads and of value heads; Hv is a multiple of Hk
  std::int64_t D = 0, Dv = 0;         ///< features of a key head and of a value head
  std::int64_t K = 4;                 ///< number of taps of the convolution
  double norm_eps = 1e-6;             ///< epsilon of the norm of each head's output
  double beta_scale = 1.0;            ///< β = beta_scale·σ(b); 2 allows negative eigenvalues of the state transition
  GateFn output_gate = GateFn::silu;  ///< function g of the output gate: norm(o) is multiplied by g(z)
  ActivationRounding rounding = ActivationRounding::none;  ///< rounding of the input of the output projection

  std::int64_t N() const { return B * T; }
  /// Returns the number of channels of q, k and v together.
  std::int64_t channels() const { return 2 * Hk * D + Hv * Dv; }
};

/// Throws Error if the operations do not support the sizes.
void validate(const DeltaNetShape& shape);

/// First column of each part of a token's projection [q | k | v | z | b | a]. q is not listed, because it begins at
/// column 0.
struct DeltaNetColumns {
  std::int64_t k = 0, v = 0, z = 0, b = 0, a = 0, width = 0;
};
DeltaNetColumns delta_net_columns(const DeltaNetShape& shape);

/// Views the activations that the forward pass saves for the backward pass.
template <typename T>
struct DeltaNetState {
  DeltaNetState(Workspace& ws, const DeltaNetShape& shape);

  View<T, 2> projection;  ///< (N,width) [q | k | v | z | b | a]; the next four members view its columns
  View<T, 2> mixed;       ///< (N,channels) [q | k | v] before the convolution
  View<T, 3> z;           ///< (N,Hv,Dv) logits of the output gate
  View<T, 2> b, a;        ///< (N,Hv) logits of β and of the decay

  View<T, 2> convolved;  ///< (N,channels) [q | k | v] after the convolution; the next three members view its columns
  View<T, 3> q, k, v;    ///< (N,Hk,D), (N,Hk,D), (N,Hv,Dv) heads of `convolved`, before the L2 norm of q and k
  View<Wide<T>, 2> decay, beta;  ///< (N,Hv) g, the logarithm of the decay, and β
  View<T, 3> o;                  ///< (N,Hv,Dv) output of the delta rule
  View<T, 3> y;                  ///< (N,Hv,Dv) normed and gated output; input of W_o
};

/// Views the buffers of the backward pass that all layers share. They are present if `training` is true.
template <typename T>
struct DeltaNetShared {
  DeltaNetShared(Workspace& ws, const DeltaNetShape& shape, bool training);

  View<T, 2> dprojection;          ///< (N,width) gradient of the projection; the next four members view its columns
  View<T, 2> dmixed;               ///< (N,channels)
  View<T, 3> dz;                   ///< (N,Hv,Dv)
  View<T, 2> db, da;               ///< (N,Hv)
  View<T, 2> dconvolved;           ///< (N,channels) gradient of `convolved`; the next three members view its columns
  View<T, 3> dq, dk, dv;           ///< gradients of q, k and v: (N,Hk,D), (N,Hk,D), (N,Hv,Dv)
  View<Wide<T>, 2> ddecay, dbeta;  ///< (N,Hv)
  View<T, 3> d_o, dy;              ///< (N,Hv,Dv) gradients of o and of y
  View<Wide<T>, 2> dconvolution;   ///< (channels,K)
  View<Wide<T>, 1> dnorm;          ///< (Dv)
};

}  // namespace headgate::layers
