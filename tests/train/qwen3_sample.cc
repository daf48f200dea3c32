// SPDX-License-Identifier: Apache-2.0
// qwen3_sample write DIR tied|separate: a random baseline in DIR/model, DIR/tokens.npy (B,T), and DIR/log_probs.npy
// (B,T,vocab), the log-probabilities that this decoder gives to every next token.
// qwen3_sample compare DIR: fails unless DIR/theirs, the model as another program wrote it, is DIR/model to the last
// bit.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "io/npy.hpp"
#include "models/decoder.hpp"
#include "train/checkpoint.hpp"

namespace {

using namespace headgate;

models::DecoderConfig sample_config(bool tied) {
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
  config.init_std = 0.2;  // logits of some size, so that errors would show
  config.embeddings = tied ? models::Embeddings::tied : models::Embeddings::separate;
  return config;
}

void write_sample(const std::string& directory, bool tied) {
  constexpr models::BatchShape kShape{2, 40};
  constexpr std::int64_t N = kShape.batch * kShape.seq;
  const models::DecoderConfig config = sample_config(tied);
  models::Decoder<float> decoder(config, kShape, models::Purpose::evaluate);
  std::vector<float> parameters(static_cast<std::size_t>(decoder.table().total()));
  models::initialise(parameters.data(), decoder.table(), config, 1);
  // Norms are ones at the start: other numbers show that each is read in its place.
  for (const models::Parameter& parameter : decoder.table().entries()) {
    if (parameter.kind != models::ParameterKind::norm) continue;
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
    if (words.size() == 3 && words[0] == "write" && (words[2] == "tied" || words[2] == "separate")) {
      write_sample(words[1], words[2] == "tied");
      return EXIT_SUCCESS;
    }
    if (words.size() == 2 && words[0] == "compare") return same_model(words[1]) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qwen3_sample: %s\n", error.what());
    return EXIT_FAILURE;
  }
  std::fprintf(stderr, "usage: qwen3_sample write DIR tied|separate, or qwen3_sample compare DIR\n");
  return EXIT_FAILURE;
}
