// SPDX-License-Identifier: Apache-2.0
#include "models/decoder/plain_decoder.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

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

  /// Returns the loss of each token; 0 for ignored targets. Records the layers' activations in `kept`.
  std::vector<N> run(const std::int32_t* tokens, const std::int32_t* targets, std::vector<PlainLayer>& kept) {
    std::vector<N> out;
    const N* embedding = tensor("model.embed_tokens.weight");
    Rows x;
    for (std::int64_t n = 0; n < shape_.batch * shape_.seq; ++n) x.push_back(row_of(embedding, tokens[n], c_.dim));
    for (std::int64_t layer = 0; layer < c_.layers; ++layer) {
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

  std::vector<N> losses(const Rows& x, const std::int32_t* targets) const {
    const bool tied = c_.embeddings == Embeddings::tied;
    using std::exp, std::log;
    const N* head = tensor(tied ? "model.embed_tokens.weight" : "lm_head.weight");
    std::vector<N> out(x.size());
    for (std::size_t n = 0; n < x.size(); ++n) {
      if (targets[n] < 0) continue;
      const Row logits = multiply(head, c_.vocab, norm(x[n], tensor("model.norm.weight")));
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

  Row norm(const Row& x, const N* w) const {
    using std::sqrt;
    N square{};
    for (const N& value : x) square += value * value;
    const N rms = sqrt(square / static_cast<double>(x.size()) + c_.norm_eps);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] / rms * (c_.norm == layers::NormKind::plain ? w[i] : 1.0 + w[i]));
    }
    return y;
  }

  /// Returns g(z) for every head and feature of one token, whether heads share it or not.
  Row gates(const Row& h) const {
    if (c_.gate.site == GateSite::none) return {};
    const auto shape = layers::gate_logits(c_.gate, c_.dim, c_.heads, c_.kv_heads, c_.head_dim);
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
    const double f = std::pow(c_.rope_base, -static_cast<double>(i) / static_cast<double>(half));
    if (c_.rope_scaling == layers::RopeScalingKind::none) return f;
    if (c_.rope_scaling == layers::RopeScalingKind::linear) return f / c_.rope_factor;
    const auto original = static_cast<double>(c_.rope_original_seq_len);
    const double wave = 2.0 * 3.14159265358979323846 / f;
    if (wave < original / c_.rope_high_freq_factor) return f;
    if (wave > original / c_.rope_low_freq_factor) return f / c_.rope_factor;
    const double smooth =
        (original / wave - c_.rope_low_freq_factor) / (c_.rope_high_freq_factor - c_.rope_low_freq_factor);
    return (1.0 - smooth) * f / c_.rope_factor + smooth * f;
  }

  /// Applies QK-norm and RoPE to one head at position t.
  Row turned(Row x, const char* norm_name, std::int64_t t) const {
    if (c_.qk_norm == QkNorm::per_head) x = norm(x, layer_tensor(norm_name));
    const auto half = static_cast<std::size_t>(rotary_dim(c_) / 2);
    Row y = x;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequency(i, half);
      y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
      y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return y;
  }

  Rows block(const Rows& x, PlainLayer& kept) {
    Rows out;
    const Rows attended = attention(x, kept);
    for (std::size_t n = 0; n < x.size(); ++n) {
      Row middle = x[n];
      add(middle, attended[n], "attention_output_layernorm.weight");
      const Row h = norm(middle, layer_tensor("post_attention_layernorm.weight"));
      Row a = multiply(layer_tensor("mlp.gate_proj.weight"), c_.ffn, h);
      const Row b = multiply(layer_tensor("mlp.up_proj.weight"), c_.ffn, h);
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = reference::gate_terms(GateFn::silu, a[i]).value * b[i];
      add(middle, multiply(layer_tensor("mlp.down_proj.weight"), c_.dim, a), "mlp_output_layernorm.weight");
      keep(kept.output, middle);
      out.push_back(middle);
    }
    return out;
  }

  void add(Row& x, Row y, const char* sandwich_norm) const {
    if (c_.norm_placement == NormPlacement::sandwich) y = norm(y, layer_tensor(sandwich_norm));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  Rows attention(const Rows& x, PlainLayer& kept) {
    Rows q, k, v, g;
    for (const Row& token : x) {
      const Row h = norm(token, layer_tensor("input_layernorm.weight"));
      g.push_back(gates(h));
      const auto project = [&](const std::string& name, std::int64_t heads, GateSite site) {
        Row y = multiply(layer_tensor(name + ".weight"), heads * c_.head_dim, h);
        for (std::size_t i = 0; i < y.size() && c_.qkv_bias == QkvBias::learned; ++i) {
          y[i] += layer_tensor(name + ".bias")[i];
        }
        return gated(site, y, g.back(), c_.head_dim);
      };
      q.push_back(project("self_attn.q_proj", c_.heads, GateSite::g4));
      k.push_back(project("self_attn.k_proj", c_.kv_heads, GateSite::g3));
      v.push_back(project("self_attn.v_proj", c_.kv_heads, GateSite::g2));
      keep(kept.gates, g.back());
      keep(kept.values, v.back());
    }
    kept.weights.assign(static_cast<std::size_t>(shape_.batch * c_.heads * shape_.seq * shape_.seq), 0.0);
    Rows out;
    for (std::int64_t n = 0; n < shape_.batch * shape_.seq; ++n) {
      const auto at = static_cast<std::size_t>(n);
      Row y;
      for (std::int64_t h = 0; h < c_.heads; ++h) {
        const Row o = attend(q, k, v, n, h, kept);
        y.insert(y.end(), o.begin(), o.end());
      }
      y = gated(GateSite::g1, controlled(y), g[at], c_.head_dim);
      out.push_back(gated(GateSite::g5, multiply(layer_tensor("self_attn.o_proj.weight"), c_.dim, y), g[at], c_.dim));
    }
    return out;
  }

  Row attend(const Rows& q, const Rows& k, const Rows& v, std::int64_t n, std::int64_t h, PlainLayer& kept) const {
    const std::int64_t b = n / shape_.seq, t = n % shape_.seq, kv = h / (c_.heads / c_.kv_heads);
    const Row query = turned(head_of(q[static_cast<std::size_t>(n)], h), "self_attn.q_norm.weight", t);
    using std::exp;
    double* weights = kept.weights.data() + ((b * c_.heads + h) * shape_.seq + t) * shape_.seq;
    N sum{};
    if (c_.gate.sinks == layers::SinkKind::off_by_one) sum = 1.0;
    if (c_.gate.sinks == layers::SinkKind::learned) sum = exp(layer_tensor("self_attn.sinks")[h]);
    const std::int64_t first = c_.window > 0 ? std::max<std::int64_t>(0, t + 1 - c_.window) : 0;
    Row p(static_cast<std::size_t>(first));
    for (std::int64_t j = first; j <= t; ++j) {
      const auto at = static_cast<std::size_t>(b * shape_.seq + j);
      const Row key = turned(head_of(k[at], kv), "self_attn.k_norm.weight", j);
      N score{};
      for (std::size_t d = 0; d < key.size(); ++d) score += query[d] * key[d];
      p.push_back(exp(score / std::sqrt(static_cast<double>(c_.head_dim))));
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
    for (std::int64_t h = 0; h < c_.heads; ++h) {
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

  DecoderConfig c_;
  ParameterTable table_;
  const N* parameters_;
  BatchShape shape_;
  std::string prefix_;
};

}  // namespace

PlainRun run_plainly(const DecoderConfig& config, const double* parameters, BatchShape shape,
                     const std::int32_t* tokens, const std::int32_t* targets) {
  PlainRun out;
  out.losses = Plain<double>(config, parameters, shape).run(tokens, targets, out.layers);
  return out;
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
