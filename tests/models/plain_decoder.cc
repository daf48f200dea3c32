// SPDX-License-Identifier: Apache-2.0
#include "models/plain_decoder.hpp"

#include <cmath>
#include <stdexcept>

namespace headgate::models {

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;
using layers::GateGrain;
using layers::GateSite;

double function_of(GateFn fn, double z) {
  const double sigma = 1.0 / (1.0 + std::exp(-z));
  switch (fn) {
    case GateFn::sigmoid: return sigma;
    case GateFn::sigmoid2: return 2.0 * sigma;
    case GateFn::ns_sigmoid: return 0.5 + 0.5 * sigma;
    case GateFn::silu: return z * sigma;
    case GateFn::softplus: return std::log(1.0 + std::exp(z));
    case GateFn::identity: return z;
    case GateFn::none: break;
  }
  throw std::logic_error("no gate function");
}

class Plain {
 public:
  Plain(const DecoderConfig& config, const double* parameters, BatchShape shape)
      : c_(config), table_(config), parameters_(parameters), shape_(shape) {}

  PlainRun run(const std::int32_t* tokens, const std::int32_t* targets) {
    PlainRun out;
    const double* embedding = tensor("model.embed_tokens.weight");
    Rows x;
    for (std::int64_t n = 0; n < shape_.batch * shape_.seq; ++n) x.push_back(row_of(embedding, tokens[n], c_.dim));
    for (std::int64_t layer = 0; layer < c_.layers; ++layer) {
      prefix_ = "model.layers." + std::to_string(layer) + ".";
      out.layers.push_back({});
      x = block(x, out.layers.back());
      out.layers.back().exit_losses = losses(x, targets);
    }
    out.losses = out.layers.back().exit_losses;
    return out;
  }

 private:
  std::vector<double> losses(const Rows& x, const std::int32_t* targets) const {
    const bool tied = c_.embeddings == Embeddings::tied;
    const double* head = tensor(tied ? "model.embed_tokens.weight" : "lm_head.weight");
    std::vector<double> out;
    for (std::size_t n = 0; n < x.size(); ++n) {
      const Row logits = multiply(head, c_.vocab, norm(x[n], tensor("model.norm.weight")));
      double sum = 0.0;
      for (const double logit : logits) sum += std::exp(logit);
      out.push_back(std::log(sum) - logits[static_cast<std::size_t>(targets[n])]);
    }
    return out;
  }

  const double* tensor(const std::string& name) const {
    const Parameter* parameter = table_.find(name);
    if (parameter == nullptr) throw std::logic_error("no tensor " + name);
    return parameters_ + parameter->offset;
  }
  const double* layer_tensor(const std::string& name) const { return tensor(prefix_ + name); }

  static Row row_of(const double* matrix, std::int64_t row, std::int64_t width) {
    return {matrix + row * width, matrix + (row + 1) * width};
  }

  static Row multiply(const double* matrix, std::int64_t rows, const Row& x) {
    Row y(static_cast<std::size_t>(rows), 0.0);
    for (std::size_t r = 0; r < y.size(); ++r) {
      for (std::size_t i = 0; i < x.size(); ++i) y[r] += matrix[r * x.size() + i] * x[i];
    }
    return y;
  }

  Row norm(const Row& x, const double* w) const {
    double square = 0.0;
    for (const double value : x) square += value * value;
    const double rms = std::sqrt(square / static_cast<double>(x.size()) + c_.norm_eps);
    Row y;
    for (std::size_t i = 0; i < x.size(); ++i) {
      y.push_back(x[i] / rms * (c_.norm == layers::NormKind::plain ? w[i] : 1.0 + w[i]));
    }
    return y;
  }

  /// g(z) for every head and feature of one token, heads shared or not.
  Row gates(const Row& h) const {
    if (c_.gate.site == GateSite::none) return {};
    const auto shape = layers::gate_logits(c_.gate, c_.dim, c_.heads, c_.kv_heads, c_.head_dim);
    const bool projected = c_.gate.source == layers::GateSource::input;
    Row z = projected ? multiply(layer_tensor("self_attn.gate_proj.weight"), shape.count(), h)
                      : row_of(layer_tensor("self_attn.gate"), 0, shape.count());
    const bool biased = c_.gate.bias == layers::GateBias::learned;
    const double* bias = biased ? layer_tensor("self_attn.gate_proj.bias") : nullptr;
    Row g;
    for (std::size_t i = 0; i < z.size(); ++i) g.push_back(function_of(c_.gate.fn, z[i] + (biased ? bias[i] : 0.0)));
    if (c_.gate.grain != GateGrain::head_shared) return g;
    Row mean(static_cast<std::size_t>(shape.features), 0.0);
    for (std::size_t i = 0; i < g.size(); ++i) mean[i % mean.size()] += g[i] / static_cast<double>(shape.heads);
    return mean;
  }

  /// y with the gate of `site`, if that is where it is; y has heads of `features`.
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

  /// QK-norm and RoPE of one head at position t.
  Row turned(Row x, const char* norm_name, std::int64_t t) const {
    if (c_.qk_norm == QkNorm::per_head) x = norm(x, layer_tensor(norm_name));
    const auto half = static_cast<std::size_t>(rotary_dim(c_) / 2);
    Row y = x;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(c_.rope_base, -static_cast<double>(i) / static_cast<double>(half));
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
      for (std::size_t i = 0; i < a.size(); ++i) a[i] = function_of(GateFn::silu, a[i]) * b[i];
      add(middle, multiply(layer_tensor("mlp.down_proj.weight"), c_.dim, a), "mlp_output_layernorm.weight");
      kept.output.insert(kept.output.end(), middle.begin(), middle.end());
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
      const auto project = [&](const char* name, std::int64_t heads, GateSite site) {
        return gated(site, multiply(layer_tensor(name), heads * c_.head_dim, h), g.back(), c_.head_dim);
      };
      q.push_back(project("self_attn.q_proj.weight", c_.heads, GateSite::g4));
      k.push_back(project("self_attn.k_proj.weight", c_.kv_heads, GateSite::g3));
      v.push_back(project("self_attn.v_proj.weight", c_.kv_heads, GateSite::g2));
      kept.gates.insert(kept.gates.end(), g.back().begin(), g.back().end());
      kept.values.insert(kept.values.end(), v.back().begin(), v.back().end());
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
    double* weights = kept.weights.data() + ((b * c_.heads + h) * shape_.seq + t) * shape_.seq;
    double sum = 0.0;
    if (c_.gate.sinks == layers::SinkKind::off_by_one) sum = 1.0;
    if (c_.gate.sinks == layers::SinkKind::learned) sum = std::exp(layer_tensor("self_attn.sinks")[h]);
    for (std::int64_t j = 0; j <= t; ++j) {
      const auto at = static_cast<std::size_t>(b * shape_.seq + j);
      const Row key = turned(head_of(k[at], kv), "self_attn.k_norm.weight", j);
      double score = 0.0;
      for (std::size_t d = 0; d < key.size(); ++d) score += query[d] * key[d];
      weights[j] = std::exp(score / std::sqrt(static_cast<double>(c_.head_dim)));
      sum += weights[j];
    }
    Row o(static_cast<std::size_t>(c_.head_dim), 0.0);
    for (std::int64_t j = 0; j <= t; ++j) {
      weights[j] /= sum;
      const Row value = head_of(v[static_cast<std::size_t>(b * shape_.seq + j)], kv);
      for (std::size_t d = 0; d < o.size(); ++d) o[d] += weights[j] * value[d];
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
        for (double& value : head) value = function_of(GateFn::silu, value);
      }
      out.insert(out.end(), head.begin(), head.end());
    }
    return out;
  }

  DecoderConfig c_;
  ParameterTable table_;
  const double* parameters_;
  BatchShape shape_;
  std::string prefix_;
};

}  // namespace

PlainRun run_plainly(const DecoderConfig& config, const double* parameters, BatchShape shape,
                     const std::int32_t* tokens, const std::int32_t* targets) {
  return Plain(config, parameters, shape).run(tokens, targets);
}

}  // namespace headgate::models
