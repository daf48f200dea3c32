// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
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

/// Writes a model of random blocks, of any architecture.
class RandomModel {
 public:
  RandomModel(const char* architecture, FormatOf format_of)
      : architecture_(architecture), format_of_(std::move(format_of)) {
    bytes_.string("general.architecture", architecture);
    for (const auto& [key, value] : {std::pair{"block_count", kLayers},
                                     {"context_length", std::int64_t{64}},
                                     {"embedding_length", kDim},
                                     {"feed_forward_length", kFfn},
                                     {"attention.head_count", kHeads},
                                     {"attention.head_count_kv", kKvHeads},
                                     {"attention.key_length", kHeadDim},
                                     {"rope.dimension_count", kHeadDim}}) {
      u32(key, value);
    }
    bytes_.f32(architecture_ + ".attention.layer_norm_rms_epsilon", 1e-5F);
  }

  void u32(const char* key, std::int64_t value) {
    bytes_.u32(architecture_ + "." + key, static_cast<std::uint32_t>(value));
  }
  void matrix(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t numbers = 1;
    for (const std::int64_t size : shape) numbers *= size;
    const io::GgufFormat& format = *io::find_gguf_format(format_of_(name));
    const auto blocks = layers::random_blocks(random_, format, numbers / format.numbers, 0.01F);
    bytes_.tensor(name, shape, format.id, std::string(blocks.begin(), blocks.end()));
  }
  /// `sign` −1: all below 0.
  void vector(const std::string& name, const std::vector<std::int64_t>& shape, float sign = 1.0F) {
    std::int64_t numbers = 1;
    for (const std::int64_t size : shape) numbers *= size;
    std::vector<float> values;
    for (std::int64_t i = 0; i < numbers; ++i) values.push_back(sign * (0.5F + 0.01F * static_cast<float>(i % 97)));
    bytes_.f32_tensor(name, shape, values);
  }
  std::string bytes() const { return bytes_.bytes(); }

 private:
  std::string architecture_;
  FormatOf format_of_;
  GgufBytes bytes_;
  std::mt19937_64 random_{7};
};

/// A Llama model, whose rows of q and k are in GGUF's order.
std::string llama_bytes(const FormatOf& format_of) {
  RandomModel out("llama", format_of);
  out.matrix("token_embd.weight", {kVocab, kDim});
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("blk.{}.", layer);
    out.vector(prefix + "attn_norm.weight", {kDim});
    out.vector(prefix + "ffn_norm.weight", {kDim});
    out.matrix(prefix + "attn_q.weight", {kHeads * kHeadDim, kDim});
    out.matrix(prefix + "attn_k.weight", {kKvHeads * kHeadDim, kDim});
    out.matrix(prefix + "attn_v.weight", {kKvHeads * kHeadDim, kDim});
    out.matrix(prefix + "attn_output.weight", {kDim, kHeads * kHeadDim});
    out.matrix(prefix + "ffn_gate.weight", {kFfn, kDim});
    out.matrix(prefix + "ffn_up.weight", {kFfn, kDim});
    out.matrix(prefix + "ffn_down.weight", {kDim, kFfn});
  }
  out.vector("output_norm.weight", {kDim});
  out.matrix("output.weight", {kVocab, kDim});
  return out.bytes();
}

/// A Qwen3.5 model with experts: a layer of linear attention, whose value heads are in GGUF's order, then attention.
std::string hybrid_bytes(const FormatOf& format_of, std::int64_t value_heads) {
  constexpr std::int64_t kExperts = 6, kKeyHeads = 2, kSize = 64;
  const std::int64_t values = value_heads * kSize, channels = 2 * kKeyHeads * kSize + values;
  RandomModel out("qwen35moe", format_of);
  for (const auto& [key, value] : {std::pair{"ssm.conv_kernel", std::int64_t{4}},
                                   {"ssm.state_size", kSize},
                                   {"ssm.group_count", kKeyHeads},
                                   {"ssm.time_step_rank", value_heads},
                                   {"ssm.inner_size", values},
                                   {"full_attention_interval", kLayers},
                                   {"expert_count", kExperts},
                                   {"expert_used_count", std::int64_t{2}},
                                   {"expert_feed_forward_length", kFfn},
                                   {"expert_shared_feed_forward_length", kFfn}}) {
    out.u32(key, value);
  }
  out.matrix("token_embd.weight", {kVocab, kDim});
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("blk.{}.", layer);
    out.vector(prefix + "attn_norm.weight", {kDim});
    out.vector(prefix + "post_attention_norm.weight", {kDim});
    if (layer == kLayers - 1) {
      out.matrix(prefix + "attn_q.weight", {2 * kHeads * kHeadDim, kDim});
      out.matrix(prefix + "attn_k.weight", {kKvHeads * kHeadDim, kDim});
      out.matrix(prefix + "attn_v.weight", {kKvHeads * kHeadDim, kDim});
      out.vector(prefix + "attn_q_norm.weight", {kHeadDim});
      out.vector(prefix + "attn_k_norm.weight", {kHeadDim});
      out.matrix(prefix + "attn_output.weight", {kDim, kHeads * kHeadDim});
    } else {
      out.matrix(prefix + "attn_qkv.weight", {channels, kDim});
      out.matrix(prefix + "attn_gate.weight", {values, kDim});
      out.matrix(prefix + "ssm_beta.weight", {value_heads, kDim});
      out.matrix(prefix + "ssm_alpha.weight", {value_heads, kDim});
      out.vector(prefix + "ssm_conv1d.weight", {channels, 4});
      out.vector(prefix + "ssm_a", {value_heads}, -1.0F);
      out.vector(prefix + "ssm_dt.bias", {value_heads});
      out.vector(prefix + "ssm_norm.weight", {kSize});
      out.matrix(prefix + "ssm_out.weight", {kDim, values});
    }
    out.vector(prefix + "ffn_gate_inp.weight", {kExperts, kDim});
    out.matrix(prefix + "ffn_gate_exps.weight", {kExperts, kFfn, kDim});
    out.matrix(prefix + "ffn_up_exps.weight", {kExperts, kFfn, kDim});
    out.matrix(prefix + "ffn_down_exps.weight", {kExperts, kDim, kFfn});
    out.matrix(prefix + "ffn_gate_shexp.weight", {kFfn, kDim});
    out.matrix(prefix + "ffn_up_shexp.weight", {kFfn, kDim});
    out.matrix(prefix + "ffn_down_shexp.weight", {kDim, kFfn});
    out.vector(prefix + "ffn_gate_inp_shexp.weight", {kDim});
  }
  out.vector("output_norm.weight", {kDim});
  out.matrix("output.weight", {kVocab, kDim});
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
std::vector<float> logits_of(CachedDecoder& decoder, const std::vector<std::int64_t>& counts = {20, 1, 1, 5, 3}) {
  const std::int64_t T = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(T));
  std::int32_t next = 3;
  for (std::int32_t& token : tokens) token = std::exchange(next, (next + 7) % static_cast<std::int32_t>(kVocab));
  std::vector<float> logits(tokens.size() * kVocab, std::nanf(""));
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    const View<float, 3> all(logits.data(), {1, T, kVocab});
    decoder.append_all(all.range(1, first, count), View<const std::int32_t, 2>(tokens.data() + first, {1, count}));
    first += count;
  }
  return logits;
}

class StoredWeights : public ::testing::Test {
 protected:
  ModelFile model(const std::string& bytes) {
    write_bytes(path, bytes);
    return ModelFile(path);
  }

  /// Compares logits bitwise if `tolerance` is 0. One thread, so that the products of many rows, too, are split as
  /// those of widened matrices.
  void expect_equals_widened(const std::string& bytes, const std::string& what, float tolerance = 0.0F) {
    const ModelFile file = model(bytes);
    CachedDecoder stored(file, {.context = {.threads = 1}});
    CachedDecoder widened(file, {.weights = DType::f32, .context = {.threads = 1}});
    EXPECT_TRUE(stored.reads_in_place()) << what;
    EXPECT_FALSE(widened.reads_in_place()) << what;
    const std::vector<float> expected = logits_of(widened), found = logits_of(stored);
    const auto [least, most] = std::minmax_element(expected.begin(), expected.end());
    const float bound = tolerance * (*most - *least);
    EXPECT_GT(*most, *least) << what;
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], bound) << what << ", logit " << i;
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
    expect_equals_widened(llama_bytes(all_in(format.word)), std::string(format.word));
  }
}

TEST_F(StoredWeights, Logits_MixedFormats_EqualThoseOfWidenedMatrices) {
  expect_equals_widened(llama_bytes(mixed), "mixed");
}

/// Both round the same widened numbers, in the same blocks of rows.
TEST_F(StoredWeights, PromptInBf16_EveryFormat_EqualsThatOfWidenedMatrices) {
  const auto prompt = [](const ModelFile& file, std::optional<DType> weights, ModelPrecision precision) {
    CachedDecoder decoder(file, {.weights = weights, .precision = precision, .context = {.threads = 1}});
    return logits_of(decoder, {40, 1, 5});
  };
  for (const io::GgufFormat& format : io::gguf_formats()) {
    if (!layers::is_multiplied(format) || format.word == "F32") continue;
    const ModelFile file = model(llama_bytes(all_in(format.word)));
    const std::vector<float> stored = prompt(file, std::nullopt, ModelPrecision::bf16);
    EXPECT_EQ(stored, prompt(file, DType::f32, ModelPrecision::bf16)) << format.word;
    EXPECT_NE(stored, prompt(file, std::nullopt, ModelPrecision::f32)) << format.word;
  }
}

/// Sums over columns in the file's order have another order, and some of their roundings differ.
TEST_F(StoredWeights, PromptInBf16_ColumnsInTheFilesOrder_IsNearerToWidenedMatricesThanF32) {
  const ModelFile file = model(hybrid_bytes(all_in("Q4_K"), 4));
  const auto prompt = [&file](std::optional<DType> weights, ModelPrecision precision) {
    CachedDecoder decoder(file, {.weights = weights, .precision = precision, .context = {.threads = 1}});
    return logits_of(decoder, {40, 1, 5});
  };
  const std::vector<float> stored = prompt(std::nullopt, ModelPrecision::bf16);
  const std::vector<float> widened = prompt(DType::f32, ModelPrecision::bf16);
  const std::vector<float> exact = prompt(DType::f32, ModelPrecision::f32);
  double by_order = 0.0, by_rounding = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    by_order = std::hypot(by_order, stored[i] - widened[i]);
    by_rounding = std::hypot(by_rounding, widened[i] - exact[i]);
  }
  EXPECT_LT(by_order, by_rounding);
  EXPECT_GT(by_rounding, 0.0);
}

TEST_F(StoredWeights, Logits_Experts_EqualThoseOfWidenedMatrices) {
  expect_equals_widened(hybrid_bytes(all_in("Q5_0"), 2), "Q5_0");
}

// Sums over the columns of ssm_out, which are in the file's order, have another order.
TEST_F(StoredWeights, Logits_MoreValueHeadsThanKeyHeads_MatchThoseOfWidenedMatrices) {
  expect_equals_widened(hybrid_bytes(all_in("Q4_K"), 4), "Q4_K", 1e-5F);
  expect_equals_widened(hybrid_bytes(all_in("Q8_0"), 6), "Q8_0", 1e-5F);
}

TEST_F(StoredWeights, Default_MatricesOfF32_AreRoundedToBf16) {
  const ModelFile file = model(llama_bytes(all_in("F32")));
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
  const ModelFile file = model(llama_bytes(all_in("Q8_0")));
  CachedDecoder decoder(file, {});
  std::filesystem::resize_file(path, 1000);
  std::vector<float> logits(kVocab);
  const std::int32_t token = 1;
  EXPECT_THROW(decoder.append(View<float, 2>(logits.data(), {1, kVocab}), View<const std::int32_t, 2>(&token, {1, 1})),
               io::FileError);
  EXPECT_EQ(decoder.length(), 0);
}

TEST_F(StoredWeights, StepBytes_OfExperts_CountThoseThatTokensChoose) {
  const ModelFile file = model(hybrid_bytes(all_in("F32"), 2));
  const auto step = [&](std::int64_t batch) {
    const CachedDecoder decoder(file, {.weights = DType::f32, .batch = batch, .context = {.threads = 1}});
    return decoder.step_bytes();
  };
  // Three sequences choose all six experts; a fourth adds what every sequence reads of its own.
  const std::size_t own = step(4) - step(3), two_experts = kLayers * 2 * 3 * kFfn * kDim * sizeof(float);
  EXPECT_EQ(step(2) - step(1), own + two_experts);
  EXPECT_EQ(step(3) - step(2), own + two_experts);
}

}  // namespace
}  // namespace headgate::models
