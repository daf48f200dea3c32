// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/decoder_buffers.hpp"

#include <algorithm>
#include <cstddef>
#include <map>

#include "library/core/check.hpp"

namespace headgate::models {

namespace {

constexpr const char* kStream = "residual stream and norms";

/// Number of logits in a chunk. A chunk in f32 takes 16 MiB, so it fits in half of a 32 MiB L3 cache. Four operations
/// read it from there: the forward product, the cross-entropy, and two backward products.
constexpr std::int64_t kLogitElements = std::int64_t{1} << 22;
/// Minimum number of rows in a chunk. Each 4-byte weight of the vocabulary head is then used for 128 operations. A core
/// at 118 GFLOP/s thus reads at most 3.7 GB/s.
constexpr std::int64_t kLeastLogitRows = 64;

layers::GatedAttentionShape attention_shape(const DecoderConfig& config, const LayerConfig& layer, BatchShape shape) {
  layers::GatedAttentionShape out;
  out.B = shape.batch;
  out.T = shape.seq;
  out.C = config.dim;
  out.Hq = layer.heads;
  out.Hkv = config.kv_heads;
  out.D = config.head_dim;
  out.rotary_dim = rotary_dim(layer.rope_fraction, config.head_dim);
  out.rope_base = layer.rope_base;
  out.scale = config.attention_scale;
  out.qk_norm = config.qk_norm;
  out.norm = {.kind = config.norm, .eps = config.norm_eps};
  out.gate = config.gate;
  out.rope_scaling = layer.rope_scaling;
  out.qkv_bias = config.qkv_bias;
  out.window = layer.window;
  return out;
}

layers::DeltaNetShape delta_net_shape(const DecoderConfig& config, BatchShape shape) {
  const LinearLayers& linear = config.linear;
  layers::DeltaNetShape out;
  out.B = shape.batch;
  out.T = shape.seq;
  out.C = config.dim;
  out.Hk = linear.key_heads;
  out.Hv = linear.value_heads;
  out.D = linear.key_dim;
  out.Dv = linear.value_dim;
  out.K = linear.kernel;
  out.norm_eps = linear.norm_eps > 0.0 ? linear.norm_eps : config.norm_eps;
  out.beta_scale = linear.beta_scale;
  return out;
}

layers::ExpertsShape experts_shape(const DecoderConfig& config, std::int64_t N) {
  const Experts& experts = config.experts;
  layers::ExpertsShape out;
  out.N = N;
  out.C = config.dim;
  out.E = experts.count;
  out.active = experts.active;
  out.I = experts.ffn;
  out.S = experts.shared_ffn;
  out.router = experts.router;
  out.renormalise = experts.renormalise == Switch::on;
  out.activation = experts.activation;
  out.scale = experts.scale;
  return out;
}

std::vector<LayerConfig> layer_configs(const DecoderConfig& config) {
  std::vector<LayerConfig> out;
  for (std::int64_t layer = 0; layer < config.layers; ++layer) out.push_back(layer_config(config, layer));
  return out;
}

/// Throws Error if the size of the working memory in bytes may exceed 63 bits. Estimates the size from an upper bound
/// of the elements per layer and token.
void require_countable(const DecoderConfig& c, BatchShape shape) {
  constexpr double kMost = 0x1p57;  // numbers
  const auto of = [](std::int64_t size) { return static_cast<double>(size); };
  const double q_width = of(std::max(c.heads, c.sliding.heads)) * of(c.head_dim);
  const double kv_width = of(c.kv_heads) * of(c.head_dim);
  const double linear =
      of(c.linear.key_heads) * of(c.linear.key_dim) + of(c.linear.value_heads) * of(c.linear.value_dim);
  const double experts = 2.0 * of(c.experts.count) + 3.0 * (of(c.experts.ffn) + of(c.experts.shared_ffn));
  const double row = 14.0 * of(c.dim) + 10.0 * q_width + 6.0 * kv_width + 12.0 * linear + 3.0 * of(c.ffn) + experts;
  const double numbers = of(shape.batch) * of(shape.seq) * of(c.layers + 2) * row;
  require(numbers <= kMost, "decoder: a batch of {} x {} tokens takes about {:.3g} numbers of working memory",
          shape.batch, shape.seq, numbers);
}

}  // namespace

const DecoderConfig& require_valid(const DecoderConfig& config, BatchShape shape) {
  validate(config);
  require(shape.seq >= 1 && shape.seq <= config.seq_len, "decoder: sequences of {} tokens, the config's seq_len is {}",
          shape.seq, config.seq_len);
  constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
  require(shape.batch >= 1 && shape.batch <= kMaxBatch, "decoder: a batch of {}, not between 1 and {}", shape.batch,
          kMaxBatch);
  require_countable(config, shape);
  return config;
}

DecoderSizes::DecoderSizes(const DecoderConfig& config, BatchShape shape, Purpose purpose,
                           layers::ActivationRounding its_rounding)
    : N(shape.batch * shape.seq),
      C(config.dim),
      F(config.ffn),
      V(config.vocab),
      logit_rows(std::min(N, std::max(kLeastLogitRows, kLogitElements / V))),
      training(purpose != Purpose::evaluate),
      norm{.kind = config.norm, .eps = config.norm_eps},
      activation(config.activation),
      embedding_scale(config.embedding_scale),
      rounding(its_rounding),
      layers(layer_configs(config)) {
  for (const LayerConfig& layer : layers) {
    if (layer.experts) experts = experts_shape(config, N);
    switch (layer.type) {
      case LayerType::full_attention: full = attention_shape(config, layer, shape); break;
      case LayerType::sliding_attention: sliding = attention_shape(config, layer, shape); break;
      case LayerType::linear_attention: linear = delta_net_shape(config, shape); break;
    }
  }
  if (experts) experts->rounding = rounding;
  if (full) full->rounding = rounding;
  if (sliding) sliding->rounding = rounding;
  if (linear) linear->rounding = rounding;
}

bool DecoderSizes::has_output_norms() const {
  return std::any_of(layers.begin(), layers.end(), [](const LayerConfig& layer) { return layer.has_output_norms; });
}

template <typename T>
SavedLayer<T>::SavedLayer(Workspace& ws, const DecoderSizes& sizes)
    : x(ws.take<Wide<T>>(kStream, sizes.N, sizes.C)),
      rstd(ws.take<Wide<T>>(kStream, sizes.N, 1)),
      h(ws.take<T>(kStream, sizes.N, sizes.C)),
      x_middle(ws.take<Wide<T>>(kStream, sizes.N, sizes.C)),
      rstd_middle(ws.take<Wide<T>>(kStream, sizes.N, 1)),
      h_middle(ws.take<T>(kStream, sizes.N, sizes.C)),
      gate_up(ws.take<T>("MLP, saved", sizes.N, 2 * sizes.F)),
      dgate_up(gate_up) {
  if (!sizes.has_output_norms()) return;
  mixer_out = ws.take<T>(kStream, sizes.N, sizes.C);
  mixer_out_rstd = ws.take<Wide<T>>(kStream, sizes.N, 1);
  mlp_out = ws.take<T>(kStream, sizes.N, sizes.C);
  mlp_out_rstd = ws.take<Wide<T>>(kStream, sizes.N, 1);
}

template <typename T>
void SavedLayer<T>::take_mixer(Workspace& ws, const DecoderSizes& sizes, LayerType type) {
  switch (type) {
    case LayerType::full_attention: attention.emplace(ws, *sizes.full); break;
    case LayerType::sliding_attention: attention.emplace(ws, *sizes.sliding); break;
    case LayerType::linear_attention: delta.emplace(ws, *sizes.linear); break;
  }
}

template <typename T>
DecoderBuffers<T>::DecoderBuffers(Workspace& ws, const DecoderSizes& sizes) {
  const std::int64_t N = sizes.N, C = sizes.C;
  std::map<LayerType, std::size_t> of_type;
  for (const LayerConfig& layer : sizes.layers) {
    const auto [known, first] = of_type.emplace(layer.type, saved.size());
    if (sizes.training || first) {
      known->second = saved.size();
      if (sizes.training || saved.empty()) {
        saved.emplace_back(ws, sizes);
      } else {
        saved.push_back(saved.front());
        saved.back().attention.reset();
        saved.back().delta.reset();
      }
      saved.back().take_mixer(ws, sizes, layer.type);
    }
    of_layer.push_back(known->second);
  }
  if (sizes.full) full.emplace(ws, *sizes.full, sizes.training);
  if (sizes.sliding) sliding.emplace(ws, *sizes.sliding, sizes.training);
  if (sizes.linear) linear.emplace(ws, *sizes.linear, sizes.training);
  if (sizes.experts) {
    experts.emplace(ws, *sizes.experts);
    if constexpr (kNarrow<T>) {
      experts_in = ws.take<Wide<T>>("experts", N, C);
      experts_out = ws.take<Wide<T>>("experts", N, C);
    } else {  // models with experts are never trained, so layers share these buffers
      experts_in = saved.front().h_middle;
      experts_out = saved.front().mlp_out;
    }
  }
  x_last = ws.take<Wide<T>>(kStream, N, C);
  rstd_last = ws.take<Wide<T>>(kStream, N, 1);
  h_last = ws.take<T>(kStream, N, C);
  activation = dactivation = ws.take<T>("MLP, one layer", N, sizes.F);
  logits = ws.take<Wide<T>>("logits, a chunk", sizes.logit_rows, sizes.V);
  if (!sizes.training) return;
  if constexpr (kNarrow<T>) {
    dlogits = ws.take<T>("logits, a chunk", sizes.logit_rows, sizes.V);
  } else {
    dlogits = logits;
  }
  dx = ws.take<Wide<T>>("gradient of the stream", N, C);
  dh = ws.take<Wide<T>>("gradient of the stream", N, C);
  if (kNarrow<T> || sizes.has_output_norms()) dout = ws.take<T>("gradient of the stream", N, C);
}

template struct SavedLayer<float>;
template struct SavedLayer<double>;
template struct SavedLayer<BFloat16>;
template struct DecoderBuffers<float>;
template struct DecoderBuffers<double>;
template struct DecoderBuffers<BFloat16>;

}  // namespace headgate::models
