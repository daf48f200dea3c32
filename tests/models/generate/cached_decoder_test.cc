// SPDX-License-Identifier: Apache-2.0
#include "models/generate/cached_decoder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "library/core/convert.hpp"
#include "models/decoder/bf16_losses.hpp"
#include "models/decoder/plain_decoder.hpp"
#include "models/decoder/tiny.hpp"
#include "models/layers/support.hpp"
#include "support/test_runs.hpp"

// Compares decoding with a cache with the formulas, which compute every sequence whole.

namespace headgate::models {
namespace {

/// Numbers of tokens in each call; stops when the sequence ends.
using Chunks = std::vector<std::int64_t>;

struct Sample {
  Sample(const DecoderConfig& config_in, BatchShape shape_in, std::uint64_t seed = 23)
      : config(config_in),
        shape(shape_in),
        values(single_precision(large_parameters(ParameterTable(config), seed))),
        batch(config, shape, seed + 6) {
    Draws draws(seed + 1);
    for (std::int32_t& target : batch.targets) target = draws.token(config.vocab);  // no target is ignored
  }

  /// Returns −log p(target) of each token by a model whose matrices are rounded as a decoder with such weights rounds
  /// them.
  std::vector<layers::Number> losses(DType weights) const {
    std::vector<double> rounded = values;
    const ParameterTable table(config);
    for (const Parameter& p : table.entries()) {
      if (weights != DType::bf16 || !is_matrix(p.kind)) continue;
      for (std::int64_t i = p.offset; i < p.offset + p.count; ++i) {
        double& value = rounded[static_cast<std::size_t>(i)];
        value = to_f32(to_bf16(static_cast<float>(value)));
      }
    }
    return losses_with_magnitudes(config, rounded, shape, batch.tokens.data(), batch.targets.data()).losses;
  }

  CachedDecoder decoder(CachedDecoderOptions options) const {
    options.batch = shape.batch;
    return CachedDecoder(config, layers::as<float>(values).data(), options);
  }

  /// Returns tokens first … first + count − 1 of each sequence.
  View<const std::int32_t, 2> tokens(std::int64_t first, std::int64_t count) const {
    return view_of(batch.tokens, shape.batch, shape.seq).range(1, first, count);
  }

  DecoderConfig config;
  BatchShape shape;
  std::vector<double> values;
  TinyBatch batch;
};

/// Returns logits (B,T,V) of a sample's tokens from `first` on, computed in calls of these sizes.
std::vector<float> run(CachedDecoder& decoder, const Sample& sample, const Chunks& chunks, std::int64_t first = 0) {
  const std::int64_t B = sample.shape.batch, T = sample.shape.seq - first, V = sample.config.vocab;
  std::vector<float> logits(static_cast<std::size_t>(B * T * V), std::numeric_limits<float>::quiet_NaN());
  std::int64_t done = 0;
  for (const std::int64_t chunk : chunks) {
    const std::int64_t here = std::min(chunk, T - done);
    if (here == 0) break;
    decoder.append_all(view_of(logits, B, T, V).range(1, done, here), sample.tokens(first + done, here));
    done += here;
    EXPECT_EQ(decoder.length(), first + done);
  }
  EXPECT_EQ(done, T);
  return logits;
}

/// Compares −log p(target) of the sample's tokens from `first` on.
void expect_losses(const std::string& what, const std::vector<float>& logits, const Sample& sample,
                   const std::vector<layers::Number>& expected, std::int64_t first = 0, double slack = 1.0,
                   DType rounded = DType::f32) {
  const std::int64_t B = sample.shape.batch, T = sample.shape.seq, V = sample.config.vocab;
  const View<const float, 3> view = view_of(logits, B, T - first, V);
  for (std::int64_t b = 0; b < B; ++b) {
    for (std::int64_t t = first; t < T && !testing::Test::HasFailure(); ++t) {
      const float* row = view.at(b, t - first);
      double sum = 0.0;
      for (std::int64_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(row[v]));
      const auto n = static_cast<std::size_t>(b * T + t);
      const double loss = std::log(sum) - static_cast<double>(row[sample.batch.targets[n]]);
      const double tolerance = slack * layers::tolerance_of(rounded, expected[n]);
      EXPECT_LE(verify::error_ratio(loss, expected[n].value, tolerance, DType::f32), 1.0)
          << what << ", token " << t << " of sequence " << b << ": " << loss << " for " << expected[n].value;
    }
  }
}

const std::vector<Chunks>& all_chunks() {
  static const std::vector<Chunks> chunks{{1, 1, 1, 1, 1, 1, 1}, {7}, {3, 1, 2, 1}, {1, 5, 1}};
  return chunks;
}

void check_config(const DecoderConfig& config) {
  const Sample sample(config, kTinyBatch);
  for (const DType weights : {DType::f32, DType::bf16}) {
    const std::vector<layers::Number> expected = sample.losses(weights);
    CachedDecoderOptions options;
    options.weights = weights;
    CachedDecoder decoder = sample.decoder(options);
    for (const Chunks& chunks : all_chunks()) {
      decoder.truncate(0);
      expect_losses(std::string(dtype_name(weights)), run(decoder, sample, chunks), sample, expected);
    }
  }
}

class GateDecoding : public testing::TestWithParam<std::string> {};

TEST_P(GateDecoding, Decoding_EveryGate_MatchesFormulas) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate(GetParam());
  check_config(config);
  config.qk_norm = QkNorm::none;
  config.norm_placement = NormPlacement::sandwich;
  check_config(config);
}

INSTANTIATE_TEST_SUITE_P(Variants, GateDecoding, testing::ValuesIn(items_to_test(all_variants())), name_of_variant);

TEST(CachedDecoder, Decoding_BiasesWindowAndScaledRope_MatchesFormulas) {
  for (const DecoderConfig& config : other_families()) check_config(config);
}

TEST(CachedDecoder, Decoding_MixedLayers_MatchesFormulas) {
  for (const DecoderConfig& config : mixed_families()) check_config(config);
  for (const DecoderConfig& config : expert_families()) check_config(config);
}

TEST(CachedDecoder, Decoding_ZeroCentredNormsPartialRopeSeparateEmbeddings_MatchesFormulas) {
  DecoderConfig config = tiny_config();
  config.norm = layers::NormKind::zero_centred;
  config.rope_fraction = 0.7;
  config.embeddings = Embeddings::separate;
  check_config(config);
}

/// Sequences have several pages, some of which a window drops.
TEST(CachedDecoder, Pages_AnyChunksAndWindow_GiveTheSameLosses) {
  for (const std::int64_t window : {0, 1, 30}) {
    DecoderConfig config = tiny_config();
    config.layers = 1;
    config.heads = 2;
    config.kv_heads = 1;
    config.head_dim = 2;
    config.ffn = 4;
    config.seq_len = 100;
    config.window = window;
    const Sample sample(config, {1, 100});
    const std::vector<layers::Number> expected = sample.losses(DType::f32);
    CachedDecoderOptions options;
    options.weights = DType::f32;
    for (const Chunks& chunks : {Chunks(100, 1), Chunks{100}, Chunks{63, 2, 1, 20, 3, 11}}) {
      CachedDecoder decoder = sample.decoder(options);
      const std::string what = "window " + std::to_string(window);
      expect_losses(what, run(decoder, sample, chunks), sample, expected);
      if (window > 0 && chunks.front() == 1) {
        const std::size_t page = 64 * 2 * 2 * sizeof(float);  // k and v
        EXPECT_LE(decoder.cache_bytes(), page * 2) << what;
      }
      // Steps back a little, then continues.
      decoder.truncate(99);
      expect_losses(what + ", once more", run(decoder, sample, {1}, 99), sample, expected, 99);
      if (window > 0) {
        EXPECT_THROW(decoder.truncate(1), Error) << what;
        EXPECT_EQ(decoder.length(), 100);
      }
    }
  }
}

TEST(CachedDecoder, Memory_GrowingSequence_IsTakenByPages) {
  DecoderConfig config = tiny_config();
  config.seq_len = 1 << 16;
  const Sample sample(config, {1, 200});
  CachedDecoder decoder = sample.decoder({.weights = DType::bf16});
  EXPECT_EQ(decoder.capacity(), config.seq_len);
  EXPECT_EQ(decoder.cache_bytes(), 0U);
  const std::size_t token = 2 * 2 * 2 * 6 * 4;  // layers, k and v, heads, features, bytes
  std::size_t held = 0;
  for (std::int64_t t = 0; t < 200; ++t) {
    std::vector<float> logits(11);
    decoder.append(view_of(logits, 1, 11), sample.tokens(t, 1));
    EXPECT_GE(decoder.cache_bytes(), token * static_cast<std::size_t>(t + 1));
    EXPECT_LE(decoder.cache_bytes(), token * static_cast<std::size_t>(3 * t / 2 + 128));
    EXPECT_GE(decoder.cache_bytes(), held);
    held = decoder.cache_bytes();
  }
}

TEST(CachedDecoder, Decoding_AfterTruncation_Continues) {
  const DecoderConfig config = tiny_config();
  const Sample sample(config, kTinyBatch), other(config, kTinyBatch, 77);
  const std::vector<layers::Number> expected = sample.losses(DType::f32);
  CachedDecoder decoder = sample.decoder({.weights = DType::f32});
  const std::vector<float> first = run(decoder, sample, {3, 4});
  decoder.truncate(3);
  expect_losses("from 3 on", run(decoder, sample, {1, 3}, 3), sample, expected, 3);
  decoder.truncate(0);
  run(decoder, other, {7});
  decoder.truncate(0);
  EXPECT_EQ(run(decoder, sample, {3, 4}), first);
}

TEST(CachedDecoder, MarkedLength_OfAnyLayers_IsGoneBackToExactly) {
  for (DecoderConfig config : mixed_families()) {
    config.seq_len = 300;
    const Sample sample(config, {2, 300});
    CachedDecoder decoder = sample.decoder({.weights = DType::f32});
    const auto append = [&](std::int64_t count) {
      std::vector<float> logits(static_cast<std::size_t>(2 * count * config.vocab));
      decoder.append_all(view_of(logits, 2, count, config.vocab), sample.tokens(decoder.length(), count));
      return logits;
    };
    append(150);
    decoder.mark(1);
    const std::vector<std::vector<float>> expected{append(1), append(140), append(1), append(1)};
    const bool recurrent = has_layer(config, LayerType::linear_attention);
    EXPECT_EQ(decoder.reachable(151), recurrent ? 150 : 151);
    for (int again = 0; again < 2; ++again) {
      decoder.truncate(150);
      for (const std::vector<float>& logits : expected)
        EXPECT_EQ(append(static_cast<std::int64_t>(logits.size()) / 2 / config.vocab), logits);
    }
    EXPECT_EQ(decoder.reachable(149), recurrent ? 0 : 149);
    EXPECT_EQ(decoder.reachable(100), 0) << "a window has dropped keys";
    EXPECT_THROW(decoder.mark(0), Error);
  }
}

TEST(CachedDecoder, DraftTokens_ThatAreRefused_LeaveNoTrace) {
  constexpr std::int64_t kKeep = 3, kPrompt = 150, kDrafts = 4;
  for (DecoderConfig config : mixed_families()) {
    config.seq_len = 160;
    const Sample sample(config, {2, 160});
    CachedDecoder plain = sample.decoder({.weights = DType::f32});
    const std::vector<float> expected = run(plain, sample, {kPrompt, 10});
    for (std::int64_t refused = 0; refused <= kKeep; ++refused) {
      const std::int64_t length = kPrompt + kDrafts - refused;
      std::vector<std::vector<float>> found;
      for (const std::int32_t other : {0, 1}) {
        CachedDecoder decoder = sample.decoder({.weights = DType::f32, .keep = kKeep});
        std::vector<float> logits(static_cast<std::size_t>(2 * kPrompt * config.vocab));
        decoder.append_all(view_of(logits, 2, kPrompt, config.vocab), sample.tokens(0, kPrompt));
        std::vector<std::int32_t> drafts;
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t t = 0; t < kDrafts; ++t)
            drafts.push_back(t < kDrafts - refused ? sample.tokens(kPrompt, kDrafts)(b, t) : other);
        }
        decoder.append_all(view_of(logits, 2, kDrafts, config.vocab), view_of(std::as_const(drafts), 2, kDrafts));
        EXPECT_EQ(decoder.reachable(length), length);
        decoder.truncate(length);
        found.push_back(run(decoder, sample, {1, 160}, length));
      }
      EXPECT_EQ(found[0], found[1]);
      const View<const float, 3> all = view_of(expected, 2, 160, config.vocab),
                                 rest = view_of(std::as_const(found[0]), 2, 160 - length, config.vocab);
      for (std::int64_t b = 0; b < 2; ++b) {
        for (std::int64_t t = length; t < 160; ++t) {
          for (std::int64_t v = 0; v < config.vocab; ++v)
            EXPECT_NEAR(rest(b, t - length, v), all(b, t, v), 1e-3F * (1.0F + std::abs(all(b, t, v))));
        }
      }
    }
  }
}

TEST(CachedDecoder, LastLogits_Alone_AreThoseOfAllLogits) {
  const DecoderConfig config = tiny_config();
  const Sample sample(config, kTinyBatch);
  for (const std::int64_t T : {1, 7}) {
    CachedDecoder one = sample.decoder({.weights = DType::f32}), all = sample.decoder({.weights = DType::f32});
    std::vector<float> last(22), every(static_cast<std::size_t>(22 * T));
    one.append(view_of(last, 2, 11), sample.tokens(0, T));
    all.append_all(view_of(every, 2, T, 11), sample.tokens(0, T));
    for (std::int64_t b = 0; b < 2; ++b) {
      const auto* row = view_of(every, 2, T, 11).at(b, T - 1);
      EXPECT_TRUE(std::equal(row, row + 11, last.data() + b * 11)) << T;
    }
  }
}

/// Passes more tokens than go through the layers at a time, and asks for the logits of the last one only.
TEST(CachedDecoder, Prompt_InParts_HasTheLogitsOfTheWhole) {
  DecoderConfig config = tiny_config();
  config.seq_len = 1200;
  const Sample sample(config, {1, 1100});
  CachedDecoder parts = sample.decoder({.weights = DType::f32}), whole = sample.decoder({.weights = DType::f32});
  std::vector<float> expected(11), logits(11);
  for (const std::int64_t chunk : {512, 512, 76})
    parts.append(view_of(expected, 1, 11), sample.tokens(parts.length(), chunk));
  whole.append(view_of(logits, 1, 11), sample.tokens(0, 1100));
  EXPECT_EQ(logits, expected);
  EXPECT_EQ(whole.length(), 1100);
  const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
  EXPECT_GT(*most - *least, 0.01F);
}

/// In int8, each key or value is off by up to 1/254 of its row's largest: twice the rounding of bf16 for that number,
/// four times for one half as large.
TEST(CachedDecoder, Int8Cache_SameTokens_IsWithinItsTolerance) {
  const Sample sample(tiny_config(), kTinyBatch);
  CachedDecoder exact = sample.decoder({.weights = DType::f32});
  CachedDecoder decoder = sample.decoder({.weights = DType::f32, .cache = DType::i8});
  const std::vector<float> logits = run(decoder, sample, {1, 5, 1});
  expect_losses("int8", logits, sample, sample.losses(DType::f32), 0, 4.0, DType::bf16);
  EXPECT_NE(logits, run(exact, sample, {1, 5, 1}));
  EXPECT_LT(decoder.cache_bytes(), exact.cache_bytes());
}

/// Decodes, goes back into the first tokens and to the beginning, and decodes again.
TEST(CachedDecoder, Int8CacheWithFirstTokens_GoneBack_HasTheBitsOfOneRun) {
  for (const DecoderConfig& config : all_families()) {
    const Sample sample(config, kTinyBatch);
    CachedDecoder rounded = sample.decoder({.weights = DType::f32, .cache = DType::i8});
    CachedDecoder decoder = sample.decoder({.weights = DType::f32, .cache = DType::i8, .cache_first = 3});
    const std::vector<float> logits = run(decoder, sample, {1, 5, 1});
    EXPECT_GT(decoder.cache_bytes(), rounded.cache_bytes());
    decoder.truncate(0);
    EXPECT_EQ(run(decoder, sample, {1, 5, 1}), logits);
    if (decoder.reachable(2) != 2) continue;
    decoder.truncate(2);
    const auto rest = sample.tokens(2, 5);
    std::vector<float> again(static_cast<std::size_t>(2 * 5 * config.vocab));
    decoder.append_all(View<float, 3>(again.data(), {2, 5, config.vocab}), rest);
    EXPECT_NE(again, std::vector<float>(again.size()));
    CachedDecoder fresh = sample.decoder({.weights = DType::f32, .cache = DType::i8, .cache_first = 3});
    std::vector<float> begun(static_cast<std::size_t>(2 * 2 * config.vocab)), wanted(again.size());
    fresh.append_all(View<float, 3>(begun.data(), {2, 2, config.vocab}), sample.tokens(0, 2));
    fresh.append_all(View<float, 3>(wanted.data(), {2, 5, config.vocab}), rest);
    for (std::size_t n = 0; n < again.size(); ++n) EXPECT_NEAR(again[n], wanted[n], 1e-4 * (1 + std::abs(wanted[n])));
  }
}

/// The first tokens stay unrounded until all of them are outside the window, although they fill several pages.
TEST(CachedDecoder, Int8CacheWithFirstTokensInAWindow_OtherPortions_HasTheSameLogits) {
  DecoderConfig config = tiny_config();
  config.seq_len = 300;
  config.window = 20;
  const Sample sample(config, {1, 300});
  const auto logits = [&](const Chunks& chunks, std::int64_t first_tokens, std::int64_t keep) {
    CachedDecoder decoder =
        sample.decoder({.weights = DType::f32, .cache = DType::i8, .cache_first = first_tokens, .keep = keep});
    return run(decoder, sample, chunks);
  };
  const Chunks one_by_one(300, 1);
  const std::vector<float> whole = logits({300}, 150, 0), rounded = logits({300}, 0, 0);
  for (const auto& other : {logits(one_by_one, 150, 0), logits(one_by_one, 150, 100), logits({70, 70, 160}, 150, 0)}) {
    double off = 0.0, of_rounding = 0.0;
    for (std::size_t n = 0; n < whole.size(); ++n) {
      ASSERT_TRUE(std::isfinite(other[n])) << n;
      off = std::max(off, std::abs(static_cast<double>(other[n]) - whole[n]));
      of_rounding = std::max(of_rounding, std::abs(static_cast<double>(rounded[n]) - whole[n]));
    }
    EXPECT_LT(off, 0.01 * of_rounding);
  }
}

/// Returns −log p(target) of each token.
std::vector<float> losses_of(const std::vector<float>& logits, const Sample& sample) {
  const auto V = static_cast<std::size_t>(sample.config.vocab);
  std::vector<float> out;
  for (std::size_t n = 0; n < sample.batch.targets.size(); ++n) {
    const float* row = logits.data() + n * V;
    double sum = 0.0;
    for (std::size_t v = 0; v < V; ++v) sum += std::exp(static_cast<double>(row[v]));
    out.push_back(static_cast<float>(std::log(sum) - static_cast<double>(row[sample.batch.targets[n]])));
  }
  return out;
}

/// Twelve sequences: three tokens and more of each are multiplied in bf16, in calls of other sizes behind tokens of
/// f32.
TEST(CachedDecoder, PromptInBf16_EveryFamily_IsWithinRoundingsToBf16) {
  constexpr BatchShape kShape{12, 7};
  for (const DecoderConfig& config : all_families()) {
    const Sample sample(config, kShape);
    for (const DType weights : {DType::f32, DType::bf16}) {
      const std::vector<layers::Number> expected = sample.losses(weights);
      for (const DType cache : {DType::f32, DType::i8}) {
        CachedDecoder decoder = sample.decoder({.weights = weights, .precision = ModelPrecision::bf16, .cache = cache});
        for (const Chunks& chunks : {Chunks{7}, Chunks{3, 4}, Chunks{1, 5, 1}}) {
          decoder.truncate(0);
          // Int8 rounds up to four times as far, as above.
          expect_bf16(losses_of(run(decoder, sample, chunks), sample), expected, cache == DType::i8 ? 4.0 : 1.0);
        }
      }
    }
  }
}

/// Fewer rows than bf16 multiplies.
TEST(CachedDecoder, FewTokensInBf16_AnyChunks_HaveTheBitsOfF32) {
  const Sample sample(tiny_config(), kTinyBatch);
  CachedDecoder f32 = sample.decoder({}), bf16 = sample.decoder({.precision = ModelPrecision::bf16});
  EXPECT_EQ(run(f32, sample, {1, 5, 1}), run(bf16, sample, {1, 5, 1}));
}

/// Beyond the pages of a cache, and of a window, and the tokens of a part.
TEST(CachedDecoder, LongPromptInBf16_AnyChunks_IsThatOfOneCall) {
  for (const std::int64_t window : {0, 70}) {
    DecoderConfig config = tiny_config();
    config.seq_len = 1200;
    config.window = window;
    const Sample sample(config, {1, 600});
    CachedDecoder f32 = sample.decoder({.weights = DType::f32});
    const std::vector<float> exact = losses_of(run(f32, sample, {600}), sample);
    for (const Chunks& chunks : {Chunks{600}, Chunks{200, 1, 399}, Chunks{64, 64, 472}}) {
      CachedDecoder decoder = sample.decoder({.weights = DType::f32, .precision = ModelPrecision::bf16});
      const std::vector<float> losses = losses_of(run(decoder, sample, chunks), sample);
      double off = 0.0, size = 0.0;
      for (std::size_t n = 0; n < losses.size(); ++n) {
        off = std::hypot(off, losses[n] - exact[n]);
        size = std::hypot(size, exact[n]);
      }
      EXPECT_LT(off, 0x1p-5 * size) << "window " << window;
      EXPECT_GT(off, 0x1p-14 * size) << "nothing was rounded to bf16";
    }
  }
}

TEST(CachedDecoder, Logits_AnyNumberOfThreads_AreBitwiseIdentical) {
  DecoderConfig config = tiny_config();
  config.vocab = 1000;
  config.dim = 96;
  config.ffn = 200;
  const Sample sample(config, kTinyBatch);
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    CachedDecoder decoder = sample.decoder({.context = {.threads = threads}});
    const std::vector<float> logits = run(decoder, sample, {1, 1, 1, 1, 1, 1, 1});
    if (first.empty()) first = logits;
    EXPECT_EQ(logits, first) << threads;
  }
}

TEST(CachedDecoder, GateThreshold_ClosedHeads_AreLeftOut) {
  DecoderConfig config = tiny_config();
  config.gate = layers::parse_gate("headwise");
  const Sample sample(config, kTinyBatch);
  CachedDecoder open = sample.decoder({.weights = DType::f32});
  CachedDecoder closed = sample.decoder({.weights = DType::f32, .gate_threshold = 1.0});  // closes every gate
  EXPECT_NE(run(open, sample, {3, 4}), run(closed, sample, {3, 4}));
  EXPECT_EQ(open.skipped().closed_rows, 0);
  EXPECT_EQ(closed.skipped().closed_share(), 1.0);
  EXPECT_EQ(closed.skipped().rows, config.layers * config.heads * 14);
}

TEST(CachedDecoder, CacheBytes_AnyLength_AreCounted) {
  for (const Embeddings embeddings : {Embeddings::tied, Embeddings::separate}) {
    DecoderConfig config = tiny_config();
    config.embeddings = embeddings;
    const Sample sample(config, kTinyBatch);
    std::size_t vectors = 0, matrices = 0;
    const ParameterTable table(config);
    for (const Parameter& p : table.entries())
      (is_matrix(p.kind) ? matrices : vectors) += static_cast<std::size_t>(p.count);
    CachedDecoder decoder = sample.decoder({.weights = DType::bf16, .cache = DType::i8});
    EXPECT_EQ(decoder.weight_bytes(), 4 * vectors + 2 * matrices);
    const std::size_t table_bytes = embeddings == Embeddings::separate ? 11 * 8 * 2 : 0;
    const std::size_t two_rows = 2 * 8 * 2, key_and_value = 2 * (6 + 4);
    for (std::size_t t = 1; t <= 7; ++t) {
      const std::size_t keys = 2 * 2 * 2 * t;  // layers, sequences, heads
      EXPECT_EQ(decoder.step_bytes(), decoder.weight_bytes() - table_bytes + two_rows + keys * key_and_value);
      std::vector<float> logits(22);
      decoder.append(view_of(logits, 2, 11), sample.tokens(static_cast<std::int64_t>(t) - 1, 1));
    }
  }
}

TEST(CachedDecoder, Decoder_BadArguments_IsRefused) {
  const DecoderConfig config = tiny_config();
  Sample sample(config, kTinyBatch);
  const auto refused = [&sample](const CachedDecoderOptions& options, const std::string& why) {
    try {
      const CachedDecoder decoder(sample.config, layers::as<float>(sample.values).data(), options);
      ADD_FAILURE() << "taken, without: " << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused({.weights = DType::f16}, "weights are f16");
  refused({.cache = DType::bf16}, "the cache is bf16");
  refused({.cache_first = 4}, "4 first tokens that stay unrounded, in a cache of f32");
  refused({.cache = DType::i8, .cache_first = -1}, "-1 first tokens");
  refused({.batch = 0}, "a batch of 0");
  refused({.capacity = 8}, "a capacity of 8");
  refused({.capacity = -1}, "a capacity of -1");
  refused({.keep = -1}, "keep is -1 tokens");
  refused({.capacity = 5, .keep = 6}, "keep is 6 tokens but must be from 0 to the capacity of 5");
  refused({.gate_threshold = 0.1}, "does not multiply");
  refused({.context = {.threads = -1}}, "-1");

  CachedDecoder decoder = sample.decoder({.capacity = 5});
  std::vector<float> logits(22 * 7, 7.0F);
  const auto rejects = [&](View<float, 2> out, View<const std::int32_t, 2> tokens, const std::string& why) {
    try {
      decoder.append(out, tokens);
      ADD_FAILURE() << "taken, without: " << why;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
    EXPECT_EQ(logits, std::vector<float>(logits.size(), 7.0F)) << why;
    EXPECT_EQ(decoder.length(), 0) << why;
  };
  const View<float, 2> out(logits.data(), {2, 11});
  rejects(out, sample.tokens(0, 6), "capacity of 5");
  rejects(out, sample.tokens(0, 0), "(2,0)");
  rejects(out, sample.tokens(0, 2).range(0, 0, 1), "(1,2)");
  rejects(View<float, 2>(logits.data(), {2, 10}), sample.tokens(0, 2), "(2,1,10)");
  rejects(View<float, 2>(logits.data(), {1, 11}), sample.tokens(0, 2), "(1,1,11)");
  rejects(View<float, 2>(nullptr, {2, 11}), sample.tokens(0, 2), "null");
  EXPECT_THROW(decoder.append_all(View<float, 3>(logits.data(), {2, 1, 11}), sample.tokens(0, 2)), Error);
  for (const std::int32_t token : {-1, 11}) {
    sample.batch.tokens[8] = token;
    rejects(out, sample.tokens(0, 2), "tokens[1][1] is " + std::to_string(token));
  }
  EXPECT_THROW(decoder.truncate(1), Error);
  EXPECT_THROW(decoder.truncate(-1), Error);
}

}  // namespace
}  // namespace headgate::models
