// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder_buffers.hpp"

#include <algorithm>
#include <cstddef>

#include "library/core/check.hpp"

namespace headgate::models {

namespace {

constexpr const char* kStream = "residual stream and norms";

/// Logits of one chunk: 16 MiB in f32, half of a third-level cache of 32 MiB. A chunk is written, turned into its
/// gradient, and read by two products.
constexpr std::int64_t kLogitElements = std::int64_t{1} << 22;
/// Fewest rows of a chunk, whatever the vocabulary. Each 4-byte weight of the head then serves 128 operations, so a
/// core at 118 GFLOP/s reads at most 3.7 GB/s.
constexpr std::int64_t kLeastLogitRows = 64;

layers::GatedAttentionShape attention_shape(const DecoderConfig& config, BatchShape shape) {
  layers::GatedAttentionShape out;
  out.B = shape.batch;
  out.T = shape.seq;
  out.C = config.dim;
  out.Hq = config.heads;
  out.Hkv = config.kv_heads;
  out.D = config.head_dim;
  out.rotary_dim = rotary_dim(config);
  out.rope_base = config.rope_base;
  out.qk_norm = config.qk_norm;
  out.norm = {.kind = config.norm, .eps = config.norm_eps};
  out.gate = config.gate;
  out.rope_scaling = {config.rope_scaling, config.rope_factor, config.rope_low_freq_factor,
                      config.rope_high_freq_factor, config.rope_original_seq_len};
  out.qkv_bias = config.qkv_bias;
  out.window = config.window;
  return out;
}

template <typename T>
std::vector<SavedLayer<T>> saved_layers(Workspace& ws, const DecoderSizes& sizes) {
  std::vector<SavedLayer<T>> layers;
  layers.reserve(static_cast<std::size_t>(sizes.layers));
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) layers.emplace_back(ws, sizes);
  return layers;
}

/// Throws unless the bytes of the working memory can be counted in 63 bits. Bounds the sum of the widths of all layers'
/// rows from above.
void require_countable(const DecoderConfig& c, BatchShape shape) {
  constexpr double kMost = 0x1p57;  // numbers
  const auto of = [](std::int64_t size) { return static_cast<double>(size); };
  const double q_width = of(c.heads) * of(c.head_dim), kv_width = of(c.kv_heads) * of(c.head_dim);
  const double row = 12.0 * of(c.dim) + 10.0 * q_width + 6.0 * kv_width + 3.0 * of(c.ffn);
  const double numbers = of(shape.batch) * of(shape.seq) * of(c.layers + 2) * row;
  require(numbers <= kMost, "decoder: a batch of {} x {} tokens takes about {:.3g} numbers of working memory",
          shape.batch, shape.seq, numbers);
}

}  // namespace

const DecoderConfig& checked_shape(const DecoderConfig& config, BatchShape shape) {
  validate(config);
  require(shape.seq >= 1 && shape.seq <= config.seq_len, "decoder: sequences of {} tokens, the config's seq_len is {}",
          shape.seq, config.seq_len);
  constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
  require(shape.batch >= 1 && shape.batch <= kMaxBatch, "decoder: a batch of {}, not between 1 and {}", shape.batch,
          kMaxBatch);
  require_countable(config, shape);
  return config;
}

DecoderSizes::DecoderSizes(const DecoderConfig& config, BatchShape shape, Purpose purpose)
    : N(shape.batch * shape.seq),
      C(config.dim),
      F(config.ffn),
      V(config.vocab),
      layers(purpose == Purpose::train ? config.layers : 1),
      logit_rows(std::min(N, std::max(kLeastLogitRows, kLogitElements / V))),
      sandwich(config.norm_placement == NormPlacement::sandwich),
      training(purpose == Purpose::train),
      attention(attention_shape(config, shape)) {}

template <typename T>
SavedLayer<T>::SavedLayer(Workspace& ws, const DecoderSizes& sizes)
    : x(ws.take<T>(kStream, sizes.N, sizes.C)),
      rstd(ws.take<T>(kStream, sizes.N, 1)),
      h(ws.take<T>(kStream, sizes.N, sizes.C)),
      x_middle(ws.take<T>(kStream, sizes.N, sizes.C)),
      rstd_middle(ws.take<T>(kStream, sizes.N, 1)),
      h_middle(ws.take<T>(kStream, sizes.N, sizes.C)),
      attention_out(sizes.sandwich ? ws.take<T>(kStream, sizes.N, sizes.C) : View<T, 2>()),
      attention_out_rstd(sizes.sandwich ? ws.take<T>(kStream, sizes.N, 1) : View<T, 2>()),
      mlp_out(sizes.sandwich ? ws.take<T>(kStream, sizes.N, sizes.C) : View<T, 2>()),
      mlp_out_rstd(sizes.sandwich ? ws.take<T>(kStream, sizes.N, 1) : View<T, 2>()),
      attention(ws, sizes.attention),
      gate_up(ws.take<T>("MLP, saved", sizes.N, 2 * sizes.F)),
      dgate_up(gate_up) {}

template <typename T>
DecoderBuffers<T>::DecoderBuffers(Workspace& ws, const DecoderSizes& sizes)
    : layers(saved_layers<T>(ws, sizes)), attention(ws, sizes.attention, sizes.training) {
  const std::int64_t N = sizes.N, C = sizes.C;
  x_last = ws.take<T>(kStream, N, C);
  rstd_last = ws.take<T>(kStream, N, 1);
  h_last = ws.take<T>(kStream, N, C);
  activation = dactivation = ws.take<T>("MLP, one layer", N, sizes.F);
  logits = dlogits = ws.take<T>("logits, a chunk", sizes.logit_rows, sizes.V);
  if (!sizes.training) return;
  dx = ws.take<T>("gradient of the stream", N, C);
  dh = ws.take<T>("gradient of the stream", N, C);
  if (sizes.sandwich) dout = ws.take<T>("gradient of the stream", N, C);
}

template struct SavedLayer<float>;
template struct SavedLayer<double>;
template struct DecoderBuffers<float>;
template struct DecoderBuffers<double>;

}  // namespace headgate::models
