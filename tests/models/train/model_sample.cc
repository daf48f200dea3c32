// SPDX-License-Identifier: Apache-2.0
// model_sample names: prints the names of models, one a line. model_sample write DIR NAME: writes that model with
// random numbers to DIR/model, DIR/tokens.npy (B,T), and DIR/log_probs.npy (B,T,vocab), the log-probabilities that this
// decoder gives to every next token. model_sample compare DIR: fails unless DIR/theirs, the model as another program
// wrote it, is bitwise identical to DIR/model.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "models/decoder/decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/io/npy.hpp"
#include "models/layers/gate_variant.hpp"
#include "models/train/checkpoint.hpp"

namespace {

using namespace headgate;

models::DecoderConfig baseline() {
  models::DecoderConfig config;
  config.vocab = 97;
  config.dim = 48;
  config.layers = 3;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.ffn = 80;
  config.seq_len = 64;
  config.rope_base = 50000.0;
  config.norm_eps = 1e-5;
  config.init_std = 0.2;  // makes logits large enough to reveal errors
  return config;
}

/// A feature other than the gate: a change of the baseline with a headwise gate.
struct Feature {
  const char* name;
  void (*change)(models::DecoderConfig& config);
};
constexpr Feature kFeatures[] = {
    {"separate_embeddings", [](auto& c) { c.embeddings = models::Embeddings::separate; }},
    {"zero_centred", [](auto& c) { c.norm = layers::NormKind::zero_centred; }},
    {"sandwich", [](auto& c) { c.norm_placement = models::NormPlacement::sandwich; }},
    {"without_qk_norm", [](auto& c) { c.qk_norm = models::QkNorm::none; }},
    {"partial_rope", [](auto& c) { c.rope_fraction = 0.6; }},
    {"without_rope", [](auto& c) { c.rope_fraction = 0.0; }},
    {"window", [](auto& c) { c.window = 5; }},
    {"qkv_bias", [](auto& c) { c.qkv_bias = models::QkvBias::learned; }},
    {"linear_rope",
     [](auto& c) {
       c.rope_scaling = layers::RopeScalingKind::linear;
       c.rope_factor = 3.0;
     }},
    {"llama3_rope",
     [](auto& c) {
       c.rope_base = 50.0;
       c.rope_scaling = layers::RopeScalingKind::llama3;
       c.rope_factor = 4.0;
       c.rope_original_seq_len = 32;
       c.rope_low_freq_factor = 0.5;
       c.rope_high_freq_factor = 2.0;
     }},
    {"yarn_rope_and_out_bias",
     [](auto& c) {
       c.rope_scaling = layers::RopeScalingKind::yarn;
       c.rope_factor = 4.0;
       c.rope_original_seq_len = 32;
       c.rope_truncate = models::Switch::off;
       c.out_bias = models::Switch::on;
     }},
};

/// The models whose layers differ, in the order of mixed_families().
constexpr const char* kMixed[] = {"layers_of_delta", "layers_as_olmo", "layers_as_gemma", "layers_as_trinity",
                                  "layers_as_step"};

models::DecoderConfig mixed(std::size_t index) {
  models::DecoderConfig config = models::mixed_families().at(index);
  config.vocab = baseline().vocab;
  config.seq_len = baseline().seq_len;
  config.init_std = baseline().init_std;
  config.norm = layers::NormKind::plain;  // zero-centred, the first would be Qwen3.5's
  return config;
}

/// Returns "tied" and "separate", which other programs call Qwen3, then every gate, then every feature with a gate,
/// then models whose layers differ.
std::vector<std::string> names() {
  std::vector<std::string> out{"tied", "separate"};
  for (const std::string& gate : models::all_variants()) {
    if (gate != "none") out.push_back(gate);
  }
  for (const Feature& feature : kFeatures) out.emplace_back(feature.name);
  out.insert(out.end(), std::begin(kMixed), std::end(kMixed));
  return out;
}

models::DecoderConfig sample_config(const std::string& name) {
  models::DecoderConfig config = baseline();
  if (name == "tied") return config;
  if (name == "separate") {
    config.embeddings = models::Embeddings::separate;
    return config;
  }
  for (std::size_t i = 0; i < std::size(kMixed); ++i) {
    if (name == kMixed[i]) return mixed(i);
  }
  for (const Feature& feature : kFeatures) {
    if (name != feature.name) continue;
    config.gate = layers::parse_gate("headwise");
    feature.change(config);
    return config;
  }
  config.gate = layers::parse_gate(name);
  return config;
}

void write_sample(const std::string& directory, const std::string& name) {
  constexpr models::BatchShape kShape{2, 40};
  constexpr std::int64_t N = kShape.batch * kShape.seq;
  const models::DecoderConfig config = sample_config(name);
  models::Decoder<float> decoder(config, kShape, models::Purpose::evaluate);
  std::vector<float> parameters(static_cast<std::size_t>(decoder.table().total()));
  models::initialise(parameters.data(), decoder.table(), config, 1);
  // Norms, biases, sinks and gates without input all start alike. Other numbers reveal whether each is read from its
  // place.
  for (const models::Parameter& parameter : decoder.table().entries()) {
    using enum models::ParameterKind;
    if (parameter.kind == embedding || parameter.kind == matrix || parameter.kind == gate_matrix) continue;
    for (std::int64_t i = 0; i < parameter.count; ++i) {
      parameters[static_cast<std::size_t>(parameter.offset + i)] += 0.05F * static_cast<float>(i % 7);
    }
  }
  io::Array tokens = io::make_array(DType::i32, {kShape.batch, kShape.seq});
  auto* token = reinterpret_cast<std::int32_t*>(tokens.data.get());
  for (std::int64_t n = 0; n < N; ++n) token[n] = static_cast<std::int32_t>((n * n * 31 + n * 7 + 3) % config.vocab);
  io::Array log_probs = io::make_array(DType::f32, {kShape.batch, kShape.seq, config.vocab});
  auto* out = reinterpret_cast<float*>(log_probs.data.get());
  std::vector<float> losses(static_cast<std::size_t>(N));
  for (std::int32_t target = 0; target < config.vocab; ++target) {
    const std::vector<std::int32_t> targets(static_cast<std::size_t>(N), target);
    decoder.loss(parameters.data(), token, targets.data(), nullptr, losses.data());
    for (std::int64_t n = 0; n < N; ++n) out[n * config.vocab + target] = -losses[static_cast<std::size_t>(n)];
  }
  std::filesystem::create_directories(directory);
  train::save_checkpoint(directory + "/model", {config, decoder.table(), parameters.data(), nullptr, nullptr, ""});
  io::NpyWriter writer;
  writer.add(directory + "/tokens.npy", tokens);
  writer.add(directory + "/log_probs.npy", log_probs);
  writer.commit();
}

bool same_model(const std::string& directory) {
  const train::Checkpoint ours = train::load_checkpoint(directory + "/model", train::CheckpointParts::model);
  const train::Checkpoint theirs = train::load_checkpoint(directory + "/theirs", train::CheckpointParts::model);
  return ours.config == theirs.config && ours.parameters == theirs.parameters;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 1 && words[0] == "names") {
      for (const std::string& name : names()) std::printf("%s\n", name.c_str());
      return EXIT_SUCCESS;
    }
    if (words.size() == 3 && words[0] == "write") {
      write_sample(words[1], words[2]);
      return EXIT_SUCCESS;
    }
    if (words.size() == 2 && words[0] == "compare") return same_model(words[1]) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_sample: %s\n", error.what());
    return EXIT_FAILURE;
  }
  std::fprintf(stderr, "usage: model_sample names, model_sample write DIR NAME, or model_sample compare DIR\n");
  return EXIT_FAILURE;
}
