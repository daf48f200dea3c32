// SPDX-License-Identifier: Apache-2.0
#include "models/evaluate/plain_metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace headgate::metrics {

namespace {

constexpr std::int64_t B = models::kTinyBatch.batch, T = models::kTinyBatch.seq;

struct Average {
  double sum = 0.0, count = 0.0;

  void add(double value) {
    sum += value;
    count += 1.0;
  }
  double value() const { return count == 0.0 ? 0.0 : sum / count; }
  std::optional<double> maybe() const { return count == 0.0 ? std::nullopt : std::optional(sum / count); }
};

Values loss_units(double nats) { return {nats, nats / std::log(2.0), std::exp(nats)}; }

Values loss(const PlainBatches& e) {
  Average mean;
  for (const models::PlainRun& run : e.runs) {
    for (const double value : run.losses) mean.add(value);
  }
  return loss_units(mean.value());
}

Values layer_loss(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (const models::PlainRun& run : e.runs) {
    for (const double value : run.layers[layer].exit_losses) mean.add(value);
  }
  return loss_units(mean.value());
}

/// Returns the mean attention of a head to token 0.
double of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average head;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t t = 1; t < T; ++t) head.add(e.weight(run, layer, b, h, t, 0));
    }
  }
  return head.value();
}

Values first_token_attention_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  return {of_head(e, layer, h)};
}

Values sink_rate_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  return {of_head(e, layer, h) > 0.3 ? 1.0 : 0.0};
}

Values first_token_attention(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (std::int64_t h = 0; h < e.heads(layer); ++h) mean.add(of_head(e, layer, h));
  return {mean.value()};
}

Values first_token_attention_uniform(const PlainBatches& /*batches*/, std::size_t /*layer*/) {
  Average mean;
  for (std::int64_t t = 1; t < T; ++t) mean.add(1.0 / static_cast<double>(t + 1));
  return {mean.value()};
}

/// Returns the mean gate of head h at token n; none without a gate at g1 that multiplies.
std::optional<double> mean_gate(const PlainBatches& e, std::size_t run, std::size_t layer, std::int64_t h,
                                std::int64_t n) {
  const layers::GateVariant& gate = e.config.gate;
  if (gate.site != layers::GateSite::g1 || gate.op != GateOp::mul) return std::nullopt;
  const std::vector<double>& gates = e.runs[run].layers[layer].gates;
  const std::int64_t heads = gate.grain == layers::GateGrain::head_shared ? 1 : e.heads(layer);
  const std::int64_t features = static_cast<std::int64_t>(gates.size()) / (B * T * heads);
  Average mean;
  for (std::int64_t d = 0; d < features; ++d) {
    mean.add(gates[static_cast<std::size_t>((n * heads + (heads == 1 ? 0 : h)) * features + d)]);
  }
  return mean.value();
}

/// Adds what passes the gate of every query except the first, at triggers, elsewhere, or both.
void add_passed(Average& mean, const PlainBatches& e, std::size_t run, std::size_t layer, bool at_triggers) {
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t t = 1; t < T; ++t) {
      if (!at_triggers && e.triggers[run][static_cast<std::size_t>(b * T + t)] != 0) continue;
      for (std::int64_t h = 0; h < e.heads(layer); ++h) {
        if (const auto gate = mean_gate(e, run, layer, h, b * T + t))
          mean.add(*gate * e.weight(run, layer, b, h, t, 0));
      }
    }
  }
}

Values first_token_attention_gated(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (std::size_t run = 0; run < e.runs.size(); ++run) add_passed(mean, e, run, layer, true);
  return {mean.maybe()};
}

Values first_token_attention_gated_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average mean;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::int64_t n = 0; n < B * T; ++n) {
      const auto gate = mean_gate(e, run, layer, h, n);
      if (n % T != 0 && gate) mean.add(*gate * e.weight(run, layer, n / T, h, n % T, 0));
    }
  }
  return {mean.maybe()};
}

/// Calls each(g) for the gates that query head h has for itself, or shares with the other queries of its key/value
/// head.
template <class Each>
void for_gates_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h, const Each& each) {
  using layers::GateGrain, layers::GateSite;
  const layers::GateVariant& gate = e.config.gate;
  if (gate.site == GateSite::none || gate.site == GateSite::g5 || gate.grain == GateGrain::head_shared) return;
  const bool of_keys = gate.site == GateSite::g2 || gate.site == GateSite::g3;
  const std::int64_t heads = of_keys ? e.config.kv_heads : e.heads(layer);
  const std::int64_t owner = of_keys ? h * e.config.kv_heads / e.heads(layer) : h;
  const std::int64_t features = gate.grain == GateGrain::headwise ? 1 : e.config.head_dim;
  for (const models::PlainRun& run : e.runs) {
    const std::vector<double>& gates = run.layers[layer].gates;
    for (std::size_t i = 0; i < gates.size(); ++i) {
      if (static_cast<std::int64_t>(i) / features % heads == owner) each(gates[i]);
    }
  }
}

Values gate_mean_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average mean;
  for_gates_of_head(e, layer, h, [&](double g) { mean.add(g); });
  return {mean.maybe()};
}

Values gate_below_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average tenth, hundredth;
  for_gates_of_head(e, layer, h, [&](double g) {
    tenth.add(g < 0.1 ? 1.0 : 0.0);
    hundredth.add(g < 0.01 ? 1.0 : 0.0);
  });
  return {tenth.maybe(), hundredth.maybe()};
}

Values first_token_attention_gated_by_trigger(const PlainBatches& e) {
  Average mean;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::size_t layer = 0; layer < e.runs[run].layers.size(); ++layer) {
      if (e.sees_first(layer)) add_passed(mean, e, run, layer, false);
    }
  }
  return {mean.maybe()};
}

Values sink_rate(const PlainBatches& e, std::size_t layer) {
  Average share;
  for (std::int64_t h = 0; h < e.heads(layer); ++h) share.add(of_head(e, layer, h) > 0.3 ? 1.0 : 0.0);
  return {share.value()};
}

Values attention_entropy_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average mean;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t t = 1; t < T; ++t) {
        double entropy = 0.0, rest = 1.0;  // weight of the sink
        const auto outcome = [&entropy](double w) { entropy -= w > 0.0 ? w * std::log(w) : 0.0; };
        for (std::int64_t j = 0; j <= t; ++j) {
          outcome(e.weight(run, layer, b, h, t, j));
          rest -= e.weight(run, layer, b, h, t, j);
        }
        if (e.config.gate.sinks != layers::SinkKind::none) outcome(rest);
        mean.add(entropy);
      }
    }
  }
  return {mean.value()};
}

Values attention_entropy(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (std::int64_t h = 0; h < e.heads(layer); ++h) mean.add(attention_entropy_of_head(e, layer, h)[0].value());
  return {mean.value()};
}

Values sink_attention_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average mean;
  for (std::size_t run = 0; run < e.runs.size() && e.config.gate.sinks != layers::SinkKind::none; ++run) {
    for (std::int64_t n = 0; n < B * T; ++n) {
      double rest = 1.0;
      for (std::int64_t j = 0; j <= n % T; ++j) rest -= e.weight(run, layer, n / T, h, n % T, j);
      if (n % T != 0) mean.add(rest);
    }
  }
  return {mean.maybe()};
}

Values sink_attention(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (std::int64_t h = 0; h < e.heads(layer); ++h) {
    if (const auto of_head = sink_attention_of_head(e, layer, h)[0]) mean.add(*of_head);
  }
  return {mean.maybe()};
}

Values massive_activation(const PlainBatches& e, std::size_t layer) {
  double largest = -1.0, token = 0.0, channel = 0.0;
  for (const models::PlainRun& run : e.runs) {
    const std::vector<double>& x = run.layers[layer].output;
    const auto dim = static_cast<std::size_t>(e.config.dim);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::abs(x[i]) <= largest) continue;
      largest = std::abs(x[i]);
      token = static_cast<double>(i / dim % static_cast<std::size_t>(T));
      channel = static_cast<double>(i % dim);
    }
  }
  return {largest, token, channel};
}

/// Computes the kurtosis in two passes: the mean, then the central moments.
double plain_kurtosis(const std::vector<double>& x) {
  const auto n = static_cast<double>(x.size());
  double mean = 0.0, second = 0.0, fourth = 0.0;
  for (const double value : x) mean += value / n;
  for (const double value : x) {
    second += std::pow(value - mean, 2) / n;
    fourth += std::pow(value - mean, 4) / n;
  }
  return fourth / (second * second);
}

Values kurtosis(const PlainBatches& e, std::size_t layer) {
  std::vector<double> all, others;
  for (const models::PlainRun& run : e.runs) {
    const std::vector<double>& x = run.layers[layer].output;
    all.insert(all.end(), x.begin(), x.end());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i / static_cast<std::size_t>(e.config.dim) % static_cast<std::size_t>(T) != 0) others.push_back(x[i]);
    }
  }
  return {plain_kurtosis(all), plain_kurtosis(others)};
}

/// Rounds numbers (N,heads,features) of a layer to int8, by the formula. Returns the relative errors with a scale for
/// each sequence and head, and for each token and head; both of all tokens, and of all but token 0.
Values int8_errors(const PlainBatches& e, std::size_t layer, std::vector<double> models::PlainLayer::*numbers,
                   std::int64_t heads) {
  double squares[2] = {}, errors[2][2] = {};  // by whether token 0 is left out, by whether the scale is a token's
  for (const models::PlainRun& run : e.runs) {
    const std::vector<double>& x = run.layers[layer].*numbers;
    const std::int64_t D = std::ssize(x) / (B * T * heads);
    const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) {
      return x[static_cast<std::size_t>(((b * T + t) * heads + h) * D + d)];
    };
    for (std::int64_t i = 0; i < B * heads * T * D; ++i) {
      const std::int64_t b = i / (heads * T * D), h = i / (T * D) % heads, t = i / D % T;
      const double value = at(b, t, h, i % D);
      for (const std::int64_t first : {0, 1}) {
        if (t < first) continue;
        double largest[2] = {};
        for (std::int64_t j = 0; j < T * D; ++j) {
          const double size = std::abs(at(b, j / D, h, j % D));
          if (j / D >= first) largest[0] = std::max(largest[0], size);
          if (j / D == t) largest[1] = std::max(largest[1], size);
        }
        squares[first] += value * value;
        for (const std::size_t of_token : {0U, 1U}) {
          const double scale = largest[of_token] / 127.0;
          errors[first][of_token] += std::pow(value - scale * std::rint(value / scale), 2);
        }
      }
    }
  }
  const auto relative = [&](std::size_t first, std::size_t of_token) {
    return std::sqrt(errors[first][of_token] / squares[first]);
  };
  return {relative(0, 0), relative(1, 0), relative(0, 1), relative(1, 1)};
}

Values int8_hidden(const PlainBatches& e, std::size_t layer) {
  return int8_errors(e, layer, &models::PlainLayer::output, 1);
}
Values int8_keys(const PlainBatches& e, std::size_t layer) {
  return int8_errors(e, layer, &models::PlainLayer::keys, e.config.kv_heads);
}
Values int8_values(const PlainBatches& e, std::size_t layer) {
  return int8_errors(e, layer, &models::PlainLayer::values, e.config.kv_heads);
}

Values gate_mean(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (const models::PlainRun& run : e.runs) {
    for (const double g : run.layers[layer].gates) mean.add(g);
  }
  return {mean.maybe()};
}

Values gate_below(const PlainBatches& e, std::size_t layer) {
  Average tenth, hundredth;
  for (const models::PlainRun& run : e.runs) {
    for (const double g : run.layers[layer].gates) {
      tenth.add(g < 0.1 ? 1.0 : 0.0);
      hundredth.add(g < 0.01 ? 1.0 : 0.0);
    }
  }
  return {tenth.maybe(), hundredth.maybe()};
}

Values first_token_attention_by_trigger(const PlainBatches& e) {
  Average trigger, other;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::size_t layer = 0; layer < e.runs[run].layers.size(); ++layer) {
      for (std::int64_t b = 0; b < B && e.sees_first(layer); ++b) {
        for (std::int64_t t = 1; t < T; ++t) {
          const bool is_trigger = e.triggers[run][static_cast<std::size_t>(b * T + t)] != 0;
          for (std::int64_t h = 0; h < e.heads(layer); ++h) {
            (is_trigger ? trigger : other).add(e.weight(run, layer, b, h, t, 0));
          }
        }
      }
    }
  }
  return {trigger.maybe(), other.maybe()};
}

Values gate_by_trigger(const PlainBatches& e) {
  Average trigger, other;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (const models::PlainLayer& layer : e.runs[run].layers) {
      const std::size_t width = layer.gates.size() / e.triggers[run].size();
      for (std::size_t n = 0; n < e.triggers[run].size(); ++n) {
        if (n % static_cast<std::size_t>(T) == 0) continue;
        for (std::size_t w = 0; w < width; ++w) {
          (e.triggers[run][n] != 0 ? trigger : other).add(layer.gates[n * width + w]);
        }
      }
    }
  }
  return {trigger.maybe(), other.maybe()};
}

Values loss_by_trigger(const PlainBatches& e) {
  Average trigger, other;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::size_t n = 0; n < e.triggers[run].size(); ++n) {
      (e.triggers[run][n] != 0 ? trigger : other).add(e.runs[run].losses[n]);
    }
  }
  return {trigger.maybe(), other.maybe()};
}

Values first_token_value_norm_ratio(const PlainBatches& e) {
  Average ratio;
  for (const models::PlainRun& run : e.runs) {
    for (const models::PlainLayer& layer : run.layers) {
      for (std::int64_t b = 0; b < B && !layer.values.empty(); ++b) {
        for (std::int64_t h = 0; h < e.config.kv_heads; ++h) {
          const auto norm = [&](std::int64_t t) {
            double sum = 0.0;
            for (std::int64_t d = 0; d < e.config.head_dim; ++d) {
              const std::int64_t at = ((b * T + t) * e.config.kv_heads + h) * e.config.head_dim + d;
              sum += std::pow(layer.values[static_cast<std::size_t>(at)], 2);
            }
            return std::sqrt(sum);
          };
          Average others;
          for (std::int64_t t = 1; t < T; ++t) others.add(norm(t));
          ratio.add(norm(0) / others.value());
        }
      }
    }
  }
  return {ratio.maybe()};
}

// --- linear attention --------------------------------------------------------------------------------------------

/// Calls each(x) for the numbers (N,Hv,features) of a layer that belong to head h, or to any if h is negative.
template <class Each>
void for_values(const PlainBatches& e, std::size_t layer, std::vector<double> models::PlainLayer::*numbers,
                std::int64_t features, std::int64_t h, const Each& each) {
  for (const models::PlainRun& run : e.runs) {
    const std::vector<double>& values = run.layers[layer].*numbers;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (h < 0 || static_cast<std::int64_t>(i) / features % e.heads(layer) == h) each(values[i]);
    }
  }
}

Values decay_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average decay, logarithm;
  for_values(e, layer, &models::PlainLayer::decays, 1, h, [&](double x) {
    decay.add(x);
    logarithm.add(std::log(x));
  });
  return {decay.value(), std::log(2.0) / -logarithm.value()};
}
Values decay(const PlainBatches& e, std::size_t layer) { return decay_of_head(e, layer, -1); }

Values beta_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average mean;
  for_values(e, layer, &models::PlainLayer::betas, 1, h, [&](double x) { mean.add(x); });
  return {mean.value()};
}
Values beta(const PlainBatches& e, std::size_t layer) { return beta_of_head(e, layer, -1); }

Values output_gate_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  Average mean, tenth, hundredth;
  for_values(e, layer, &models::PlainLayer::output_gates, e.config.linear.value_dim, h, [&](double x) {
    mean.add(std::abs(x));
    tenth.add(std::abs(x) < 0.1 ? 1.0 : 0.0);
    hundredth.add(std::abs(x) < 0.01 ? 1.0 : 0.0);
  });
  return {mean.value(), tenth.value(), hundredth.value()};
}
Values output_gate(const PlainBatches& e, std::size_t layer) { return output_gate_of_head(e, layer, -1); }

/// Returns the mean over queries of Σ_j |a_tj| value(t, j) / Σ_j |a_tj|.
template <class Value>
double mean_of_shares(const PlainBatches& e, std::size_t layer, std::int64_t h, const Value& value) {
  Average mean;
  for (std::size_t run = 0; run < e.runs.size(); ++run) {
    for (std::int64_t b = 0; b < B; ++b) {
      for (std::int64_t t = 1; t < T; ++t) {
        double all = 0.0, weighted = 0.0;
        for (std::int64_t j = 0; j <= t; ++j) {
          const double a = std::abs(e.weight(run, layer, b, h, t, j));
          all += a;
          weighted += a * value(t, j);
        }
        mean.add(weighted / all);
      }
    }
  }
  return mean.value();
}

Values hidden_first_token_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  return {mean_of_shares(e, layer, h, [](std::int64_t /*t*/, std::int64_t j) { return j == 0 ? 1.0 : 0.0; })};
}

Values reach_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  return {mean_of_shares(e, layer, h, [](std::int64_t t, std::int64_t j) { return static_cast<double>(t - j); })};
}

/// ‖S‖_F⁴ / ‖SᵀS‖_F².
double participation_ratio(const double* state, std::int64_t D, std::int64_t Dv) {
  double norm = 0.0, of_gram = 0.0;
  for (std::int64_t i = 0; i < Dv; ++i) {
    for (std::int64_t j = 0; j < Dv; ++j) {
      double product = 0.0;
      for (std::int64_t d = 0; d < D; ++d) product += state[d * Dv + i] * state[d * Dv + j];
      of_gram += product * product;
      if (i == j) norm += product;
    }
  }
  return norm * norm / of_gram;
}

Values state_rank_of_head(const PlainBatches& e, std::size_t layer, std::int64_t h) {
  const std::int64_t D = e.config.linear.key_dim, Dv = e.config.linear.value_dim;
  Average mean;
  for (const models::PlainRun& run : e.runs) {
    for (std::int64_t b = 0; b < B; ++b) {
      const double* states = run.layers[layer].states.data();
      mean.add(participation_ratio(states + (b * e.heads(layer) + h) * D * Dv, D, Dv));
    }
  }
  return {mean.value()};
}

/// Returns the mean over heads.
template <Values (*of_head)(const PlainBatches&, std::size_t, std::int64_t)>
Values over_heads(const PlainBatches& e, std::size_t layer) {
  Average mean;
  for (std::int64_t h = 0; h < e.heads(layer); ++h) mean.add(of_head(e, layer, h)[0].value());
  return {mean.value()};
}

constexpr PlainMetric kPlain[] = {
    {"loss", nullptr, loss},
    {"layer_loss", layer_loss},
    {"first_token_attention", first_token_attention, nullptr, first_token_attention_of_head},
    {"first_token_attention_uniform", first_token_attention_uniform},
    {"first_token_attention_gated", first_token_attention_gated, nullptr, first_token_attention_gated_of_head},
    {"sink_rate", sink_rate, nullptr, sink_rate_of_head},
    {"sink_attention", sink_attention, nullptr, sink_attention_of_head},
    {"attention_entropy", attention_entropy, nullptr, attention_entropy_of_head},
    {"massive_activation", massive_activation},
    {"kurtosis", kurtosis},
    {"int8_hidden", int8_hidden},
    {"int8_keys", int8_keys},
    {"int8_values", int8_values},
    {"gate_mean", gate_mean, nullptr, gate_mean_of_head},
    {"gate_below", gate_below, nullptr, gate_below_of_head},
    {"decay", decay, nullptr, decay_of_head},
    {"beta", beta, nullptr, beta_of_head},
    {"output_gate", output_gate, nullptr, output_gate_of_head},
    {"hidden_first_token", over_heads<hidden_first_token_of_head>, nullptr, hidden_first_token_of_head},
    {"reach", over_heads<reach_of_head>, nullptr, reach_of_head},
    {"state_rank", over_heads<state_rank_of_head>, nullptr, state_rank_of_head},
    {"first_token_attention_by_trigger", nullptr, first_token_attention_by_trigger},
    {"gate_by_trigger", nullptr, gate_by_trigger},
    {"loss_by_trigger", nullptr, loss_by_trigger},
    {"first_token_value_norm_ratio", nullptr, first_token_value_norm_ratio},
    {"first_token_attention_gated_by_trigger", nullptr, first_token_attention_gated_by_trigger},
};

}  // namespace

std::span<const PlainMetric> plain_metrics() { return kPlain; }

}  // namespace headgate::metrics
