// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "library/core/convert.hpp"
#include "models/families/model_file.hpp"
#include "models/generate/cached_decoder.hpp"
#include "models/io/gguf_bytes.hpp"
#include "models/io/scratch.hpp"
#include "models/layers/stored_gemm.hpp"
#include "models/layers/stored_sample.hpp"

// Compares decoders that read a GGUF file's matrices in place with decoders that hold them widened.

namespace headgate::models {
namespace {

using headgate::testing::GgufBytes;
using headgate::testing::Scratch;
using headgate::testing::write_bytes;

constexpr std::int64_t kVocab = 40, kDim = 256, kLayers = 2, kHeads = 4, kKvHeads = 2, kHeadDim = 64, kFfn = 256;

/// Returns the word of the format in which the tensor of that name is stored.
using FormatOf = std::function<std::string_view(const std::string& name)>;

/// A Llama model with random blocks in its matrices, whose rows of q and k are in GGUF's order.
std::string llama_bytes(const FormatOf& format_of) {
  std::mt19937_64 random(7);
  GgufBytes out;
  out.string("general.architecture", "llama");
  const auto u32 = [&](const char* key, std::int64_t value) {
    out.u32(std::string("llama.") + key, static_cast<std::uint32_t>(value));
  };
  u32("block_count", kLayers);
  u32("context_length", 64);
  u32("embedding_length", kDim);
  u32("feed_forward_length", kFfn);
  u32("attention.head_count", kHeads);
  u32("attention.head_count_kv", kKvHeads);
  u32("attention.key_length", kHeadDim);
  u32("rope.dimension_count", kHeadDim);
  out.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    const io::GgufFormat& format = *io::find_gguf_format(format_of(name));
    const auto blocks = layers::random_blocks(random, format, rows * columns / format.numbers, 0.01F);
    out.tensor(name, {rows, columns}, format.id, std::string(blocks.begin(), blocks.end()));
  };
  const auto norm = [&](const std::string& name) {
    std::vector<float> values;
    for (std::int64_t c = 0; c < kDim; ++c) values.push_back(1.0F + 0.01F * static_cast<float>(c % 7));
    out.f32_tensor(name, {kDim}, values);
  };
  matrix("token_embd.weight", kVocab, kDim);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("blk.{}.", layer);
    norm(prefix + "attn_norm.weight");
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "attn_q.weight", kHeads * kHeadDim, kDim);
    matrix(prefix + "attn_k.weight", kKvHeads * kHeadDim, kDim);
    matrix(prefix + "attn_v.weight", kKvHeads * kHeadDim, kDim);
    matrix(prefix + "attn_output.weight", kDim, kHeads * kHeadDim);
    matrix(prefix + "ffn_gate.weight", kFfn, kDim);
    matrix(prefix + "ffn_up.weight", kFfn, kDim);
    matrix(prefix + "ffn_down.weight", kDim, kFfn);
  }
  norm("output_norm.weight");
  matrix("output.weight", kVocab, kDim);
  return out.bytes();
}

FormatOf all_in(std::string_view word) {
  return [word](const std::string& /*name*/) { return word; };
}

/// As files of mixed formats are: other formats for v, the second product of the MLP, and the embedding.
std::string_view mixed(const std::string& name) {
  if (name.ends_with("attn_v.weight") || name.ends_with("ffn_down.weight")) return "Q6_K";
  if (name.ends_with("ffn_up.weight")) return "Q5_0";
  if (name == "token_embd.weight") return "Q8_0";
  return name == "output.weight" ? "F16" : "Q4_K";
}

/// Returns the logits after each token, from prompts of many and few tokens and single ones.
std::vector<float> logits_of(CachedDecoder& decoder) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 30; ++i) tokens.push_back((7 * i + 3) % static_cast<std::int32_t>(kVocab));
  std::vector<float> logits(tokens.size() * kVocab, std::nanf(""));
  std::int64_t first = 0;
  for (const std::int64_t count : {20, 1, 1, 5, 3}) {
    const View<float, 3> all(logits.data(), {1, 30, kVocab});
    decoder.append_all(all.range(1, first, count), View<const std::int32_t, 2>(tokens.data() + first, {1, count}));
    first += count;
  }
  return logits;
}

class StoredWeights : public ::testing::Test {
 protected:
  ModelFile model(const FormatOf& format_of) {
    write_bytes(path, llama_bytes(format_of));
    return ModelFile(path);
  }

  /// One thread, so that the products of many rows, too, are split as those of widened matrices.
  void expect_equals_widened(const FormatOf& format_of, const std::string& what) {
    const ModelFile file = model(format_of);
    CachedDecoder stored(file, {.context = {.threads = 1}});
    CachedDecoder widened(file, {.weights = DType::f32, .context = {.threads = 1}});
    EXPECT_TRUE(stored.reads_in_place()) << what;
    EXPECT_FALSE(widened.reads_in_place()) << what;
    const std::vector<float> expected = logits_of(widened);
    EXPECT_EQ(logits_of(stored), expected) << what;
    EXPECT_GT(*std::max_element(expected.begin(), expected.end()), *std::min_element(expected.begin(), expected.end()));
    const auto file_bytes = static_cast<double>(std::filesystem::file_size(path));
    EXPECT_LE(static_cast<double>(stored.weight_bytes()), 1.1 * file_bytes) << what;
    EXPECT_LT(stored.step_bytes(), widened.step_bytes()) << what;
  }

  void expect_refused(const std::string& why) {
    try {
      CachedDecoder decoder(ModelFile(path), {});
      ADD_FAILURE() << "opened, in spite of: " << why;
    } catch (const io::FileError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }

  Scratch scratch;
  std::string path = scratch / "m.gguf";
};

TEST_F(StoredWeights, Logits_EveryFormat_EqualThoseOfWidenedMatrices) {
  for (const io::GgufFormat& format : io::gguf_formats()) {
    if (!layers::is_multiplied(format) || format.word == "F32") continue;
    expect_equals_widened(all_in(format.word), std::string(format.word));
  }
}

TEST_F(StoredWeights, Logits_MixedFormats_EqualThoseOfWidenedMatrices) { expect_equals_widened(mixed, "mixed"); }

TEST_F(StoredWeights, Default_MatricesOfF32_AreRoundedToBf16) {
  const ModelFile file = model(all_in("F32"));
  CachedDecoder decoder(file, {});
  EXPECT_FALSE(decoder.reads_in_place());
  EXPECT_EQ(decoder.options().weights, DType::bf16);
}

TEST_F(StoredWeights, Scale_NotFinite_IsRefusedWhenTheModelIsOpened) {
  std::string bytes = llama_bytes(all_in("Q4_K"));
  write_bytes(path, bytes);
  const std::size_t start = bytes.size() - static_cast<std::size_t>(kVocab) * 144;  // output.weight is the last tensor
  const Float16 infinity = to_f16(HUGE_VALF);
  std::memcpy(bytes.data() + start + 3 * 144 + 2, &infinity, sizeof(infinity));
  write_bytes(path, bytes);
  expect_refused("tensor 'output.weight': element 768 is");
}

TEST_F(StoredWeights, Format_NotWidened_IsRefused) {
  write_bytes(path, llama_bytes([](const std::string& name) {
                return name.ends_with("ffn_up.weight") ? std::string_view("Q2_K") : std::string_view("Q4_K");
              }));
  expect_refused("is Q2_K, which is not read; F32, F16");
}

TEST_F(StoredWeights, File_ShortenedAfterItWasOpened_EndsTheCall) {
  const ModelFile file = model(all_in("Q8_0"));
  CachedDecoder decoder(file, {});
  std::filesystem::resize_file(path, 1000);
  std::vector<float> logits(kVocab);
  const std::int32_t token = 1;
  EXPECT_THROW(decoder.append(View<float, 2>(logits.data(), {1, kVocab}), View<const std::int32_t, 2>(&token, {1, 1})),
               io::FileError);
  EXPECT_EQ(decoder.length(), 0);
}

}  // namespace
}  // namespace headgate::models
