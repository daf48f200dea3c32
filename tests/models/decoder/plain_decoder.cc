// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/plain_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <type_traits>

#include "verify/oracle/gates.hpp"

namespace headgate::models {

namespace {

using layers::GateGrain;
using layers::GateSite;
using layers::Number;

double value_of(double x) { return x; }
double value_of(const Number& x) { return x.value; }

/// N is double, or Number to get magnitudes and gradients.
template <typename N>
class Plain {
 public:
  Plain(const DecoderConfig& config, const N* parameters, BatchShape shape)
      : c_(config), table_(config), parameters_(parameters), shape_(shape) {}

  /// Maps a product's input to the largest magnitude of the numbers that are rounded.
  using Largest = std::map<std::string, double>;

  /// Rounds the inputs of products. `largest` of an earlier run gives the scales that span tokens.
  void round_inputs(layers::ActivationRounding rounding, const Largest& largest) {
    rounding_ = rounding;
    largest_ = largest;
  }
  /// Returns the largest magnitudes of the last run.
  const Largest& seen() const { return seen_; }

  /// Returns the loss of each token; 0 for ignored targets. Records the layers' activations in `kept`.
  std::vector<N> run(const std::int32_t* tokens, const std::int32_t* targets, std::vector<PlainLayer>& kept) {
    std::vector<N> out;
    const N* embedding = tensor("model.embed_tokens.weight");
    Rows x;
    for (std::int64_t n = 0; n < shape_.batch * shape_.seq; ++n) {
      x.push_back(row_of(embedding, tokens[n], c_.dim));
      for (N& value : x.back()) value = value * c_.embedding_scale;
    }
    for (std::int64_t layer = 0; layer < c_.layers; ++layer) {
      l_ = layer_config(c_, layer);
      prefix_ = "model.layers." + std::to_string(layer) + ".";
      kept.push_back({});
      x = block(x, kept.back());
      out = losses(x, targets);
      for (const N& loss : out) kept.back().exit_losses.push_back(value_of(loss));
    }
    return out;
  }

 private:
  using Row = std::vector<N>;
  using Rows = std::vector<Row>;

  /// Rounds x, the input of a product for token n, if the model rounds its inputs.
  Row rounded(const std::string& input, Row x, std::size_t n) {
    using enum layers::ActivationRounding;
    if constexpr (std::is_same_v<N, double>) {
      const bool first = n % static_cast<std::size_t>(shape_.seq) == 0;
      if (rounding_ == none || (rounding_ == tensor_keep_first && first)) return x;
      double largest = 0.0;
      for (const double value : x) largest = std::max(largest, std::abs(value));
      if (rounding_ != token) {
        double& seen = seen_[input];
        seen = std::max(seen, largest);
        largest = largest_[input];
      }
      if (largest == 0.0) return x;
      for (double& value : x) value = std::nearbyint(value / (largest / 127.0)) * (largest / 127.0);
    }
    return x;
  }

  std::vector<N> losses(const Rows& x, const std::int32_t* targets) {
    const bool tied = c_.embeddings == Embeddings::tied;
    using std::exp, std::log;
    const N* head = tensor(tied ? "model.embed_tokens.weight" : "lm_head.weight");
    std::vector<N> out(x.size());
    for (std::size_t n = 0; n < x.size(); ++n) {
      const Row h = rounded(prefix_ + "head", norm(x[n], tensor("model.norm.weight")), n);
      if (targets[n] < 0) continue;
      const Row logits = multiply(head, c_.vocab, h);
      N sum{};
      for (const N& logit : logits) sum += exp(logit);
      out[n] = log(sum) - logits[static_cast<std::size_t>(targets[n])];
    }
    return out;
  }

  const N* tensor(const std::string& name) const {
    const Parameter* parameter = table_.find(name);
    if (parameter == nullptr) throw std::logic_error("no tensor " + name);
    return parameters_ + parameter->offset;
  }
  const N* layer_tensor(const std::string& name) const { return tensor(prefix_ + name); }

  static void keep(std::vector<double>& kept, const Row& row) {
    for (const N& x : row) kept.push_back(value_of(x));
  }

  static Row row_of(const N* matrix, std::int64_t row, std::int64_t width) {
    return {matrix + row * width, matrix + (row + 1) * width};
  }

  static Row multiply(const N* matrix, std::int64_t rows, const Row& x) {
    Row y(static_cast<std::size_t>(rows));
    for (std::size_t r = 0; r < y.size(); ++r) {
      for (std::size_t i = 0; i < x.size(); ++i) y[r] += matrix[r * x.size() + i] * x[i];
    }
    return y;
  }

  Row norm(const Row& x, const N* w) const { return norm(x, w, c_.norm, c_.norm_eps); }
  static Row norm(const Row& x, const N* w, layers::NormKind kind, double eps) {
    using std::sqrt;
    N square{};
    for (const N& value : x) square += value * value;
    const N rms = sqrt(square / static_cast<double>(x.size()) + eps);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] / rms * (kind == layers::NormKind::plain ? w[i] : 1.0 + w[i]));
    }
    return y;
  }

  /// Returns g(z) for every head and feature of one token, whether heads share it or not.
  Row gates(const Row& h) const {
    if (c_.gate.site == GateSite::none) return {};
    const auto shape = layers::gate_logits(c_.gate, c_.dim, l_.heads, c_.kv_heads, c_.head_dim);
    const bool projected = c_.gate.source == layers::GateSource::input;
    Row z = projected ? multiply(layer_tensor("self_attn.gate_proj.weight"), shape.count(), h)
                      : row_of(layer_tensor("self_attn.gate"), 0, shape.count());
    const bool biased = c_.gate.bias == layers::GateBias::learned;
    const N* bias = biased ? layer_tensor("self_attn.gate_proj.bias") : nullptr;
    Row g;
    for (std::size_t i = 0; i < z.size(); ++i)
      g.push_back(reference::gate_terms(c_.gate.fn, biased ? z[i] + bias[i] : z[i]).value);
    if (c_.gate.grain != GateGrain::head_shared) return g;
    Row mean(static_cast<std::size_t>(shape.features));
    for (std::size_t i = 0; i < g.size(); ++i) mean[i % mean.size()] += g[i] / static_cast<double>(shape.heads);
    return mean;
  }

  /// Returns y with the gate of `site`, if the model has its gate there; y has heads of `features`.
  Row gated(GateSite site, Row y, const Row& g, std::int64_t features) const {
    if (c_.gate.site != site) return y;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto head = i / static_cast<std::size_t>(features), feature = i % static_cast<std::size_t>(features);
      const std::size_t at = c_.gate.grain == GateGrain::headwise      ? head
                             : c_.gate.grain == GateGrain::head_shared ? feature
                                                                       : i;
      y[i] = c_.gate.op == GateOp::mul ? y[i] * g[at] : y[i] + g[at];
    }
    return y;
  }

  Row head_of(const Row& x, std::int64_t h) const {
    return {x.begin() + h * c_.head_dim, x.begin() + (h + 1) * c_.head_dim};
  }

  /// Returns radians a token of pair i of `half`.
  double frequency(std::size_t i, std::size_t half) const {
    const layers::RopeScaling& scaling = l_.rope_scaling;
    const double f = std::pow(l_.rope_base, -static_cast<double>(i) / static_cast<double>(half));
    if (scaling.kind == layers::RopeScalingKind::none) return f;
    if (scaling.kind == layers::RopeScalingKind::linear) return f / scaling.factor;
    const auto original = static_cast<double>(scaling.original_seq_len);
    if (scaling.kind == layers::RopeScalingKind::yarn) {
      const auto index_of = [&](double turns) {
        return static_cast<double>(half) * std::log(original / (turns * 6.283185307179586)) / std::log(l_.rope_base);
      };
      double from = index_of(scaling.high_freq_factor), to = index_of(scaling.low_freq_factor);
      if (scaling.truncate) from = std::floor(from), to = std::ceil(to);
      from = std::max(from, 0.0);
      to = std::min(to, 2.0 * static_cast<double>(half) - 1.0);
      if (from == to) to += 0.001;  // as transformers
      const double slowed = std::clamp((static_cast<double>(i) - from) / (to - from), 0.0, 1.0);
      return f * (1.0 - slowed) + f / scaling.factor * slowed;
    }
    const double wave = 2.0 * 3.14159265358979323846 / f;
    if (wave < original / scaling.high_freq_factor) return f;
    if (wave > original / scaling.low_freq_factor) return f / scaling.factor;
    const double smooth =
        (original / wave - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    return (1.0 - smooth) * f / scaling.factor + smooth * f;
  }

  /// Applies RoPE to one head at position t.
  Row turned(const Row& x, std::int64_t t) const {
    const auto half = static_cast<std::size_t>(rotary_dim(l_.rope_fraction, c_.head_dim) / 2);
    const layers::RopeScaling& scaling = l_.rope_scaling;
    double factor = scaling.attention_factor;
    if (scaling.kind != layers::RopeScalingKind::yarn) factor = 1.0;
    if (factor == 0.0) factor = 1.0 + std::log(scaling.factor) / 10.0;
    Row y = x;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequency(i, half);
      y[i] = factor * (x[i] * std::cos(angle) - x[i + half] * std::sin(angle));
      y[i + half] = factor * (x[i + half] * std::cos(angle) + x[i] * std::sin(angle));
    }
    return y;
  }

  /// Applies QK-norm to the heads of one token.
  Row qk_normed(const Row& x, const char* norm_name) const {
    if (c_.qk_norm == QkNorm::none) return x;
    if (c_.qk_norm == QkNorm::all_heads) return norm(x, layer_tensor(norm_name));
    Row y;
    for (std::int64_t h = 0; h * c_.head_dim < std::ssize(x); ++h) {
      const Row head = norm(head_of(x, h), layer_tensor(norm_name));
      y.insert(y.end(), head.begin(), head.end());
    }
    return y;
  }

  static N sigmoid(const N& x) { return reference::gate_terms(GateFn::sigmoid, x).value; }
  static N silu(const N& x) { return reference::gate_terms(GateFn::silu, x).value; }

  N activated(const N& x) const {
    if (c_.activation == Activation::silu) return silu(x);
    return x * sigmoid(2.0 * std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x));
  }

  Rows block(const Rows& x, PlainLayer& kept) {
    Rows out;
    Rows inputs;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const Row h = l_.has_input_norms ? norm(x[n], layer_tensor("input_layernorm.weight")) : x[n];
      inputs.push_back(rounded(prefix_ + "mixer", h, n));
    }
    const Rows mixed = l_.type == LayerType::linear_attention ? delta_net(inputs, kept) : attention(inputs, kept);
    for (std::size_t n = 0; n < x.size(); ++n) {
      Row middle = x[n];
      add(middle, mixed[n], "attention_output_layernorm.weight");
      const Row normed = l_.has_input_norms ? norm(middle, layer_tensor("post_attention_layernorm.weight")) : middle;
      const Row h = rounded(prefix_ + "mlp", normed, n);
      const Row y = l_.experts ? experts(h, n) : swiglu(tensors_of("mlp.", c_.ffn), h, 0.0, n);
      add(middle, y, "mlp_output_layernorm.weight");
      keep(kept.output, middle);
      out.push_back(middle);
    }
    return out;
  }

  struct Swiglu {
    const N *gate, *up, *down;
    std::int64_t width;
    const N *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
    bool shifted = false;
  };
  Swiglu tensors_of(const std::string& prefix, std::int64_t width) const {
    return {layer_tensor(prefix + "gate_proj.weight"), layer_tensor(prefix + "up_proj.weight"),
            layer_tensor(prefix + "down_proj.weight"), width};
  }

  /// Computes token n. limit > 0 clamps the activations.
  Row swiglu(const Swiglu& w, const Row& h, double limit, std::size_t n) {
    Row a = biased(multiply(w.gate, w.width, h), w.gate_bias);
    const Row b = biased(multiply(w.up, w.width, h), w.up_bias);
    const auto at_most = [&](const N& x) { return limit > 0.0 && value_of(x) > limit ? N{limit} : x; };
    for (std::size_t i = 0; i < a.size(); ++i) {
      const N below = at_most(b[i]), up = limit > 0.0 && value_of(below) < -limit ? N{-limit} : below;
      const N gate = at_most(a[i]);
      a[i] = w.shifted ? gate * sigmoid(1.702 * gate) * (up + 1.0) : at_most(activated(a[i])) * up;
    }
    a = rounded("down " + std::to_string(w.down - parameters_), a, n);
    return biased(multiply(w.down, c_.dim, a), w.down_bias);
  }

  static Row biased(Row x, const N* bias) {
    for (std::size_t i = 0; i < x.size() && bias != nullptr; ++i) x[i] += bias[i];
    return x;
  }

  /// Returns the weight of each expert, 0 of those that are not chosen.
  Row expert_weights(const Row& h) const {
    using std::exp;
    const Experts& e = c_.experts;
    const bool softmax = e.router == ExpertRouter::softmax;
    const N* bias = e.biases == Switch::on ? layer_tensor("mlp.gate.bias") : nullptr;
    Row scores = biased(multiply(layer_tensor("mlp.gate.weight"), e.count, h), bias);
    N sum{};
    for (N& score : scores) score = softmax ? exp(score) : sigmoid(score);
    for (const N& score : scores) sum += score;
    Row weights(scores.size());
    std::vector<double> order;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (softmax) scores[i] = scores[i] / sum;
      order.push_back(value_of(softmax ? scores[i] : scores[i] + layer_tensor("mlp.expert_bias")[i]));
    }
    N chosen{};
    for (std::int64_t k = 0; k < e.active; ++k) {
      const auto best = static_cast<std::size_t>(std::max_element(order.begin(), order.end()) - order.begin());
      weights[best] = scores[best];
      chosen += scores[best];
      order[best] = -1e300;
    }
    for (N& weight : weights) weight = weight * e.scale / (e.renormalise == Switch::on ? chosen : N{1.0});
    return weights;
  }

  Row experts(const Row& h, std::size_t n) {
    const Experts& e = c_.experts;
    const Row weights = expert_weights(h);
    Row out(h.size());
    const auto add_to = [&](const N& weight, const Row& y) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * y[i];
    };
    const N *gate_up = layer_tensor("mlp.experts.gate_up_proj"), *down = layer_tensor("mlp.experts.down_proj");
    for (std::int64_t i = 0; i < e.count; ++i) {
      const N* gate = gate_up + 2 * i * e.ffn * c_.dim;
      Swiglu w{gate, gate + e.ffn * c_.dim, down + i * c_.dim * e.ffn, e.ffn};
      w.shifted = e.activation == ExpertActivation::shifted_swiglu;
      if (e.biases == Switch::on) {
        w.gate_bias = layer_tensor("mlp.experts.gate_up_proj_bias") + 2 * i * e.ffn;
        w.up_bias = w.gate_bias + e.ffn;
        w.down_bias = layer_tensor("mlp.experts.down_proj_bias") + i * c_.dim;
      }
      const N& weight = weights[static_cast<std::size_t>(i)];
      if (value_of(weight) != 0.0) add_to(weight, swiglu(w, h, l_.limit, n));
    }
    if (e.shared_ffn == 0) return out;
    const bool gated = e.shared_gate == Switch::on;
    const N weight = gated ? sigmoid(multiply(layer_tensor("mlp.shared_expert_gate.weight"), 1, h).front()) : N{1.0};
    add_to(weight, swiglu(tensors_of("mlp.shared_expert.", e.shared_ffn), h, l_.shared_limit, n));
    return out;
  }

  void add(Row& x, Row y, const char* norm_name) const {
    if (l_.has_output_norms) y = norm(y, layer_tensor(norm_name));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Rows attention(const Rows& x, PlainLayer& kept) {
    Rows q, k, v, g;
    for (const Row& h : x) {
      g.push_back(gates(h));
      const auto project = [&](const std::string& name, std::int64_t heads, GateSite site) {
        Row y = multiply(layer_tensor(name + ".weight"), heads * c_.head_dim, h);
        for (std::size_t i = 0; i < y.size() && c_.qkv_bias == QkvBias::learned; ++i) {
          y[i] += layer_tensor(name + ".bias")[i];
        }
        return gated(site, y, g.back(), c_.head_dim);
      };
      q.push_back(qk_normed(project("self_attn.q_proj", l_.heads, GateSite::g4), "self_attn.q_norm.weight"));
      k.push_back(qk_normed(project("self_attn.k_proj", c_.kv_heads, GateSite::g3), "self_attn.k_norm.weight"));
      v.push_back(project("self_attn.v_proj", c_.kv_heads, GateSite::g2));
      keep(kept.gates, g.back());
      for (std::int64_t kv = 0; kv < c_.kv_heads; ++kv) {
        keep(kept.keys, turned(head_of(k.back(), kv), (std::ssize(k) - 1) % shape_.seq));
      }
      keep(kept.values, v.back());
    }
    kept.weights.assign(static_cast<std::size_t>(shape_.batch * l_.heads * shape_.seq * shape_.seq), 0.0);
    Rows out;
    for (std::int64_t n = 0; n < shape_.batch * shape_.seq; ++n) {
      const auto at = static_cast<std::size_t>(n);
      Row y;
      for (std::int64_t h = 0; h < l_.heads; ++h) {
        const Row o = attend(q, k, v, n, h, kept);
        y.insert(y.end(), o.begin(), o.end());
      }
      y = rounded(prefix_ + "out", gated(GateSite::g1, controlled(y), g[at], c_.head_dim), at);
      Row projected = multiply(layer_tensor("self_attn.o_proj.weight"), c_.dim, y);
      for (std::size_t i = 0; i < projected.size() && c_.out_bias == Switch::on; ++i) {
        projected[i] += layer_tensor("self_attn.o_proj.bias")[i];
      }
      out.push_back(gated(GateSite::g5, projected, g[at], c_.dim));
    }
    return out;
  }

  Row attend(const Rows& q, const Rows& k, const Rows& v, std::int64_t n, std::int64_t h, PlainLayer& kept) const {
    const std::int64_t b = n / shape_.seq, t = n % shape_.seq, kv = h / (l_.heads / c_.kv_heads);
    const Row query = turned(head_of(q[static_cast<std::size_t>(n)], h), t);
    const double scale =
        c_.attention_scale > 0.0 ? c_.attention_scale : 1.0 / std::sqrt(static_cast<double>(c_.head_dim));
    using std::exp;
    double* weights = kept.weights.data() + ((b * l_.heads + h) * shape_.seq + t) * shape_.seq;
    N sum{};
    if (c_.gate.sinks == layers::SinkKind::off_by_one) sum = 1.0;
    if (c_.gate.sinks == layers::SinkKind::learned) sum = exp(layer_tensor("self_attn.sinks")[h]);
    const std::int64_t first = l_.window > 0 ? std::max<std::int64_t>(0, t + 1 - l_.window) : 0;
    Row p(static_cast<std::size_t>(first));
    for (std::int64_t j = first; j <= t; ++j) {
      const auto at = static_cast<std::size_t>(b * shape_.seq + j);
      const Row key = turned(head_of(k[at], kv), j);
      N score{};
      for (std::size_t d = 0; d < key.size(); ++d) score += query[d] * key[d];
      p.push_back(exp(score * scale));
      sum += p.back();
    }
    Row o(static_cast<std::size_t>(c_.head_dim));
    for (std::int64_t j = 0; j <= t; ++j) {
      const N weight = p[static_cast<std::size_t>(j)] / sum;
      weights[j] = value_of(weight);
      const Row value = head_of(v[static_cast<std::size_t>(b * shape_.seq + j)], kv);
      for (std::size_t d = 0; d < o.size(); ++d) o[d] += weight * value[d];
    }
    return o;
  }

  Row controlled(const Row& y) const {
    Row out;
    for (std::int64_t h = 0; h < l_.heads; ++h) {
      Row head = head_of(y, h);
      if (c_.gate.output_control == layers::OutputControl::head_rmsnorm) {
        head = norm(head, layer_tensor("self_attn.head_norm.weight"));
      }
      if (c_.gate.output_control == layers::OutputControl::silu) {
        for (N& value : head) value = reference::gate_terms(GateFn::silu, value).value;
      }
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }

  // --- linear attention ------------------------------------------------------------------------------------------

  /// Returns the layer of x (N,C): Gated DeltaNet, one token after the other.
  Rows delta_net(const Rows& x, PlainLayer& kept) {
    Rows out;
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      const Rows sequence(x.begin() + b * shape_.seq, x.begin() + (b + 1) * shape_.seq);
      for (const Row& y : delta_sequence(sequence, kept)) {
        const Row h = rounded(prefix_ + "out", y, out.size());
        out.push_back(multiply(layer_tensor("linear_attn.out_proj.weight"), c_.dim, h));
      }
    }
    return out;
  }

  /// Returns q, k and v of token t: projected, convolved with the tokens before, and through SiLU.
  Row convolved(const Rows& x, std::int64_t t) const {
    const LinearLayers& l = c_.linear;
    const std::int64_t channels = 2 * l.key_heads * l.key_dim + l.value_heads * l.value_dim;
    const N* taps = layer_tensor("linear_attn.conv1d.weight");
    Row sum(static_cast<std::size_t>(channels));
    for (std::int64_t tap = 0; tap < l.kernel; ++tap) {
      const std::int64_t from = t - (l.kernel - 1) + tap;
      if (from < 0) continue;
      const Row in =
          multiply(layer_tensor("linear_attn.in_proj_qkv.weight"), channels, x[static_cast<std::size_t>(from)]);
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] += taps[static_cast<std::int64_t>(i) * l.kernel + tap] * in[i];
    }
    for (N& value : sum) value = silu(value);
    return sum;
  }

  static Row unit(const Row& x) {
    using std::sqrt;
    N square{};
    for (const N& value : x) square += value * value;
    const N length = sqrt(square + 1e-6);
    Row y;
    for (const N& value : x) y.push_back(value / length);
    return y;
  }

  /// What a value head's rule reads at a token.
  struct RuleStep {
    Row q, k;
    N decay, beta;
  };

  /// Keeps what each token reads of each value: what the rule gives if that value is 1, and all others 0.
  void keep_rule_weights(const std::vector<RuleStep>& steps, PlainLayer& kept) const {
    for (std::size_t t = 0; t < steps.size(); ++t) {
      for (std::size_t j = 0; j < steps.size(); ++j) {
        Rows state(steps[0].k.size(), Row(1));
        Row o(1);
        for (std::size_t i = 0; i <= t; ++i) {
          o = delta_step(state, steps[i].q, steps[i].k, Row(1, N{i == j ? 1.0 : 0.0}), steps[i].decay, steps[i].beta);
        }
        kept.rule_weights.push_back(value_of(o[0]));
      }
    }
  }

  Rows delta_sequence(const Rows& x, PlainLayer& kept) const {
    using std::exp, std::log;
    const LinearLayers& l = c_.linear;
    const std::int64_t D = l.key_dim, Dv = l.value_dim, keys = l.key_heads * D;
    std::vector<Rows> states(static_cast<std::size_t>(l.value_heads),
                             Rows(static_cast<std::size_t>(D), Row(static_cast<std::size_t>(Dv))));
    const double eps = l.norm_eps > 0.0 ? l.norm_eps : c_.norm_eps;
    std::vector<std::vector<RuleStep>> steps(states.size());
    Rows out;
    for (std::int64_t t = 0; t < std::ssize(x); ++t) {
      const Row& h = x[static_cast<std::size_t>(t)];
      const Row qkv = convolved(x, t);
      const Row z = multiply(layer_tensor("linear_attn.in_proj_z.weight"), l.value_heads * Dv, h);
      const Row b = multiply(layer_tensor("linear_attn.in_proj_b.weight"), l.value_heads, h);
      const Row a = multiply(layer_tensor("linear_attn.in_proj_a.weight"), l.value_heads, h);
      Row y;
      for (std::int64_t head = 0; head < l.value_heads; ++head) {
        const auto part = [&](std::int64_t begin, std::int64_t size) {
          Row copy(static_cast<std::size_t>(size));
          std::copy_n(qkv.begin() + begin, size, copy.begin());
          return copy;
        };
        const std::int64_t key_head = head / (l.value_heads / l.key_heads);
        const auto index = static_cast<std::size_t>(head);
        const Row q = unit(part(key_head * D, D)), k = unit(part(keys + key_head * D, D));
        const Row v = part(2 * keys + head * Dv, Dv);
        const N softplus = log(1.0 + exp(a[index] + layer_tensor("linear_attn.dt_bias")[head]));
        const N decay = exp(-exp(layer_tensor("linear_attn.A_log")[head]) * softplus);
        const N beta = l.beta_scale * sigmoid(b[index]);
        const Row o = delta_step(states[index], q, k, v, decay, beta);
        steps[index].push_back({q, k, decay, beta});
        keep(kept.decays, {decay});
        keep(kept.betas, {beta});
        const Row normed = norm(o, layer_tensor("linear_attn.norm.weight"), layers::NormKind::plain, eps);
        for (std::size_t d = 0; d < normed.size(); ++d) {
          const N gate = silu(z[index * static_cast<std::size_t>(Dv) + d]);
          y.push_back(normed[d] * gate);
          keep(kept.output_gates, {gate});
        }
      }
      out.push_back(y);
    }
    for (std::size_t head = 0; head < states.size(); ++head) {
      // A tape would record steps that no loss reads.
      if constexpr (std::is_same_v<N, double>) keep_rule_weights(steps[head], kept);
      for (const Row& row : states[head]) keep(kept.states, row);
    }
    return out;
  }

  /// Updates the state (D,Dv) and returns q·S / √D.
  static Row delta_step(Rows& state, const Row& q, const Row& k, const Row& v, const N& decay, const N& beta) {
    Row read(v.size()), o(v.size());
    for (std::size_t d = 0; d < k.size(); ++d) {
      for (std::size_t j = 0; j < v.size(); ++j) {
        state[d][j] = decay * state[d][j];
        read[j] += state[d][j] * k[d];
      }
    }
    for (std::size_t d = 0; d < k.size(); ++d) {
      for (std::size_t j = 0; j < v.size(); ++j) {
        state[d][j] += k[d] * (beta * (v[j] - read[j]));
        o[j] += state[d][j] * q[d] / std::sqrt(static_cast<double>(k.size()));
      }
    }
    return o;
  }

  DecoderConfig c_;
  LayerConfig l_;  // of the layer that runs
  ParameterTable table_;
  const N* parameters_;
  BatchShape shape_;
  std::string prefix_;
  layers::ActivationRounding rounding_ = layers::ActivationRounding::none;
  Largest largest_, seen_;
};

}  // namespace

PlainRun run_plainly(const DecoderConfig& config, const double* parameters, BatchShape shape,
                     const std::int32_t* tokens, const std::int32_t* targets, layers::ActivationRounding rounding) {
  // Each run finds the scale of at least one more input, as scales before it in the pass are right.
  for (Plain<double>::Largest largest;;) {
    PlainRun out;
    Plain<double> plain(config, parameters, shape);
    plain.round_inputs(rounding, largest);
    out.losses = plain.run(tokens, targets, out.layers);
    if (plain.seen() == largest) return out;
    largest = plain.seen();
  }
}

namespace {

/// Evaluates under `tape`; computes gradients only if `differentiated`.
PlainGradients evaluate(layers::Tape& tape, bool differentiated, const DecoderConfig& config,
                        const std::vector<double>& parameters, BatchShape shape, const std::int32_t* tokens,
                        const std::int32_t* targets) {
  const std::vector<Number> in = tape.inputs(parameters);
  std::vector<PlainLayer> layers;
  PlainGradients out;
  out.losses = Plain<Number>(config, in.data(), shape).run(tokens, targets, layers);
  double counted = 0.0;
  for (std::size_t n = 0; n < out.losses.size(); ++n) {
    out.loss += out.losses[n];
    counted += targets[n] >= 0 ? 1.0 : 0.0;
  }
  if (counted > 0.0) out.loss = out.loss / counted;
  if (!differentiated) return out;
  tape.differentiate({out.loss}, {1.0});
  out.gradients = tape.gradients(in);
  return out;
}

template <class Visit>
void each_number(PlainGradients& run, const Visit& visit) {
  visit(run.loss);
  for (Number& loss : run.losses) visit(loss);
  for (Number& gradient : run.gradients) visit(gradient);
}

/// Measures magnitudes: what a number's roundings move it by, divided by the size of one, in runs whose every result is
/// moved.
PlainGradients with_magnitudes(bool differentiated, const DecoderConfig& config, const std::vector<double>& parameters,
                               BatchShape shape, const std::int32_t* tokens, const std::int32_t* targets) {
  constexpr double kJitter = 0x1p-30;  // far above roundings in f64; its square is far below what matters
  constexpr int kRuns = 24;
  const auto run_under = [&](layers::Tape tape) {
    return evaluate(tape, differentiated, config, parameters, shape, tokens, targets);
  };
  PlainGradients out = run_under(layers::Tape(0.0, 0, differentiated));
  each_number(out, [](Number& x) { x = layers::number(x.value, 0.0, 0); });
  for (int run = 1; run <= kRuns; ++run) {
    PlainGradients moved = run_under(layers::Tape(kJitter, static_cast<std::uint64_t>(run), differentiated));
    std::vector<double> values;
    each_number(moved, [&](const Number& x) { values.push_back(x.value); });
    std::size_t at = 0;
    each_number(out, [&](Number& x) { x.magnitude = std::hypot(x.magnitude, values[at++] - x.value); });
  }
  each_number(out, [](Number& x) { x.magnitude /= kJitter * std::sqrt(static_cast<double>(kRuns)); });
  return out;
}

}  // namespace

PlainLosses losses_with_magnitudes(const DecoderConfig& config, const std::vector<double>& parameters, BatchShape shape,
                                   const std::int32_t* tokens, const std::int32_t* targets) {
  return with_magnitudes(false, config, parameters, shape, tokens, targets);
}

PlainGradients differentiate_plainly(const DecoderConfig& config, const std::vector<double>& parameters,
                                     BatchShape shape, const std::int32_t* tokens, const std::int32_t* targets) {
  return with_magnitudes(true, config, parameters, shape, tokens, targets);
}

}  // namespace headgate::models
