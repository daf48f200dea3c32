// SPDX-License-Identifier: Apache-2.0
#include "headgate/cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headgate/convert.hpp"
#include "library/core/element.hpp"
#include "library/core/random.hpp"

// Checks that a cache holds, page by page, the tokens in a list for each sequence, whatever was done to it, and that
// attention over it is bitwise identical to attention over those tokens.

namespace headgate::testing {
namespace {

constexpr std::int64_t kHkv = 2, kD = 6, kDv = 5;

/// Returns the element of key or value row `token`, head h, column d.
float element(std::int64_t token, bool value, std::int64_t h, std::int64_t d) {
  const auto key = static_cast<std::uint64_t>(((token * 10 + h) * 10 + d) * 2 + (value ? 1 : 0));
  return static_cast<float>(4.0 * SplitMix64(key * kSplitMix64Step).uniform() - 2.0);
}

/// Returns (B,Hkv,T,width) of the tokens of each sequence.
std::vector<float> rows_of(const std::vector<std::vector<std::int64_t>>& tokens, bool value) {
  std::vector<float> out;
  for (const auto& sequence : tokens) {
    for (std::int64_t h = 0; h < kHkv; ++h) {
      for (const std::int64_t token : sequence) {
        for (std::int64_t d = 0; d < (value ? kDv : kD); ++d) out.push_back(element(token, value, h, d));
      }
    }
  }
  return out;
}

CacheShape shape_with(DType dtype, std::int64_t page, std::int64_t pages) {
  return {.kv_heads = kHkv, .head_dim = kD, .value_dim = kDv, .page = page, .pages = pages, .dtype = dtype};
}

void append(KvCache& cache, const std::vector<std::int64_t>& sequences,
            const std::vector<std::vector<std::int64_t>>& tokens) {
  const auto B = static_cast<std::int64_t>(sequences.size());
  const auto T = static_cast<std::int64_t>(tokens.front().size());
  const std::vector<float> k = rows_of(tokens, false);
  const std::vector<float> v = rows_of(tokens, true);
  cache.append(sequences, make_view(k.data(), Shape{B, kHkv, T, kD}), make_view(v.data(), Shape{B, kHkv, T, kDv}));
}

/// The rows that the cache should hold for `tokens`: (1,Hkv,n,width) in its dtype, and their scales.
struct Stored {
  std::vector<std::uint8_t> bytes;
  std::vector<float> scale;
  TensorView view, scale_view;

  Stored(DType dtype, const std::vector<std::int64_t>& tokens, bool value) {
    const Shape shape{1, kHkv, static_cast<std::int64_t>(tokens.size()), value ? kDv : kD};
    const std::vector<float> rows = rows_of({tokens}, value);
    bytes.resize(rows.size() * dtype_bytes(dtype));
    view = {bytes.data(), dtype, shape, contiguous_strides(shape)};
    if (dtype == DType::i8) {
      scale.resize(tokens.size() * kHkv);
      scale_view = make_view(scale.data(), Shape{1, kHkv, shape[2], 1});
      quantize(view, scale_view, make_view(rows.data(), shape));
    } else {
      convert(view, make_view(rows.data(), shape));
    }
  }
};

void expect_rows(const KvCache& cache, std::int64_t sequence, const TensorView& held, const TensorView& wanted) {
  for (std::int64_t h = 0; wanted.present() && h < kHkv; ++h) {
    for (std::int64_t j = 0; j < wanted.shape[2]; ++j) {
      const std::int64_t page = cache.pages(sequence)[static_cast<std::size_t>(j / cache.shape().page)];
      for (std::int64_t d = 0; d < wanted.shape[3]; ++d) {
        ASSERT_EQ(load(held, page, h, j % cache.shape().page, d), load(wanted, 0, h, j, d))
            << "sequence " << sequence << " head " << h << " token " << j;
      }
    }
  }
}

void expect_tokens(const KvCache& cache, std::int64_t sequence, const std::vector<std::int64_t>& tokens) {
  ASSERT_EQ(cache.length(sequence), static_cast<std::int64_t>(tokens.size()));
  const Stored k(cache.shape().dtype, tokens, false);
  const Stored v(cache.shape().dtype, tokens, true);
  expect_rows(cache, sequence, cache.tensors().k, k.view);
  expect_rows(cache, sequence, cache.tensors().v, v.view);
  expect_rows(cache, sequence, cache.tensors().k_scale, k.scale_view);
  expect_rows(cache, sequence, cache.tensors().v_scale, v.scale_view);
}

/// Expects that a batch of the sequence has the first rows of `tokens` as they were appended.
void expect_first_rows(const KvCache& cache, std::int64_t sequence, const std::vector<std::int64_t>& tokens) {
  const CacheShape& shape = cache.shape();
  if (shape.whole_first == 0) return;
  const CacheBatch batch = cache.batch(std::vector<std::int64_t>{sequence}, 0);
  AttentionInputs in;
  batch.set(in);
  ASSERT_EQ(in.k_first.shape, (Shape{1, kHkv, shape.whole_first, kD}));
  ASSERT_EQ(in.v_first.shape, (Shape{1, kHkv, shape.whole_first, kDv}));
  const auto held = std::min(shape.whole_first, static_cast<std::int64_t>(tokens.size()));
  for (const bool value : {false, true}) {
    const Stored wanted(shape.whole_dtype, {tokens.begin(), tokens.begin() + held}, value);
    const ConstTensorView& rows = value ? in.v_first : in.k_first;
    for (std::int64_t h = 0; h < kHkv; ++h) {
      for (std::int64_t j = 0; j < held; ++j) {
        for (std::int64_t d = 0; d < rows.shape[3]; ++d) {
          ASSERT_EQ(load(rows, 0, h, j, d), load(wanted.view, 0, h, j, d)) << "head " << h << " token " << j;
        }
      }
    }
  }
}

std::string said_by(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

/// Applies random operations to a cache and to lists of tokens.
class RandomOperations {
 public:
  RandomOperations(const CacheShape& shape, std::uint32_t seed) : random_(seed), cache_(shape) {}

  void step() {
    const std::int64_t kind = below(8);
    if (model_.empty() || kind == 0) {
      model_[cache_.add_sequence()];
      return;
    }
    auto it = model_.begin();
    std::advance(it, below(static_cast<std::int64_t>(model_.size())));
    auto& [sequence, tokens] = *it;
    const auto length = static_cast<std::int64_t>(tokens.size());
    if (kind == 1) {
      const std::vector<std::int64_t> copy = tokens;
      model_[cache_.fork(sequence)] = copy;
    } else if (kind == 2) {
      const std::int64_t left = below(length + 1);
      cache_.truncate(sequence, left);
      tokens.resize(static_cast<std::size_t>(left));
    } else if (kind == 3 && below(3) == 0) {
      cache_.remove_sequence(sequence);
      model_.erase(it);
    } else if (kind == 4 && below(20) == 0) {
      cache_.grow(cache_.shape().pages + below(3));
    } else {
      add_tokens(sequence, tokens);
    }
  }

  void expect_right() const {
    for (const auto& [sequence, tokens] : model_) {
      expect_tokens(cache_, sequence, tokens);
      expect_first_rows(cache_, sequence, tokens);
    }
  }

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }

  void add_tokens(std::int64_t sequence, std::vector<std::int64_t>& tokens) {
    std::vector<std::int64_t> more(static_cast<std::size_t>(1 + below(7)));
    for (std::int64_t& token : more) token = next_token_++;
    const std::int64_t free = cache_.free_pages();
    try {
      append(cache_, {sequence}, {more});
      tokens.insert(tokens.end(), more.begin(), more.end());
    } catch (const Error&) {  // out of pages: nothing has changed
      EXPECT_EQ(cache_.free_pages(), free);
      EXPECT_LE(free, 8);
    }
  }

  std::mt19937 random_;
  KvCache cache_;
  std::map<std::int64_t, std::vector<std::int64_t>> model_;
  std::int64_t next_token_ = 1;
};

TEST(Cache, Rows_AnySequenceOfOperations_AreThoseAppended) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8}) {
    for (const std::int64_t page : {1, 3, 16}) {
      RandomOperations operations(shape_with(dtype, page, 12), static_cast<std::uint32_t>(page) + 7);
      for (int n = 0; n < 120; ++n) {
        operations.step();
        if (n % 4 == 3) operations.expect_right();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Cache, FirstRows_AnySequenceOfOperations_StayUnrounded) {
  for (const DType whole : {DType::f32, DType::bf16, DType::f64}) {
    for (const std::int64_t page : {1, 3, 16}) {
      CacheShape shape = shape_with(DType::i8, page, 12);
      shape.whole_first = 4;
      shape.whole_dtype = whole;
      RandomOperations operations(shape, static_cast<std::uint32_t>(page) + 9);
      for (int n = 0; n < 120; ++n) {
        operations.step();
        if (n % 4 == 3) operations.expect_right();
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Returns y of one query of each head over a batch.
std::vector<float> attended(const CacheBatch& batch) {
  const auto B = static_cast<std::int64_t>(batch.key_lengths.size());
  std::vector<float> q(static_cast<std::size_t>(B * 2 * kHkv * kD)), y(static_cast<std::size_t>(B * 2 * kHkv * kDv));
  for (std::size_t n = 0; n < q.size(); ++n) q[n] = element(static_cast<std::int64_t>(n % 24), false, 5, 3);
  AttentionInputs in;
  in.q = make_view(static_cast<const float*>(q.data()), Shape{B, 2 * kHkv, 1, kD});
  batch.set(in);
  AttentionOutputs out;
  out.y = make_view(y.data(), Shape{B, 2 * kHkv, 1, kDv});
  AttentionOptions options;
  options.causality = Causality::causal;
  attention_forward(out, in, options);
  return y;
}

TEST(Cache, FirstRows_AppendedInOtherPortionsAndPages_GiveTheSameBits) {
  std::vector<std::int64_t> tokens(40);
  for (std::size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<std::int64_t>(n);
  std::vector<float> wanted;
  for (const std::int64_t page : {1, 3, 64}) {
    for (const std::size_t portion : {40, 1, 3, 8}) {
      CacheShape shape = shape_with(DType::i8, page, 64);
      shape.whole_first = 5;
      KvCache cache(shape);
      const std::int64_t s = cache.add_sequence();
      append(cache, {s}, {{90, 91, 92}});  // tokens that are taken back
      cache.truncate(s, 0);
      for (std::size_t first = 0; first < tokens.size(); first += portion) {
        const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(first);
        const auto count = static_cast<std::ptrdiff_t>(std::min(portion, tokens.size() - first));
        append(cache, {s}, {{begin, begin + count}});
      }
      const std::vector<float> y = attended(cache.batch(std::vector<std::int64_t>{s}, 1));
      if (wanted.empty()) wanted = y;
      EXPECT_EQ(y, wanted) << "page " << page << " portions of " << portion;
    }
  }
  KvCache rounded(shape_with(DType::i8, 64, 1));
  const std::int64_t s = rounded.add_sequence();
  append(rounded, {s}, {tokens});
  EXPECT_NE(attended(rounded.batch(std::vector<std::int64_t>{s}, 1)), wanted);
}

TEST(Cache, FirstRows_DroppedByAWindow_AreReadAsInt8) {
  CacheShape shape = shape_with(DType::i8, 2, 40);
  shape.whole_first = 3;
  shape.whole_dtype = DType::bf16;
  KvCache cache(shape);
  KvCache rounded(shape_with(DType::i8, 2, 40));
  const std::int64_t s = cache.add_sequence(), other = cache.add_sequence();
  rounded.add_sequence();
  rounded.add_sequence();
  for (KvCache* each : {&cache, &rounded}) {
    append(*each, {s, other}, {{1, 2, 3, 4, 5, 6, 7, 8}, {11, 12, 13, 14, 15, 16, 17, 18}});
    each->slide(s, 0, 3);
  }
  const std::vector<std::int64_t> slid{s}, both{s, other};
  EXPECT_EQ(cache.batch(slid, 1).first, 0);
  EXPECT_EQ(attended(cache.batch(slid, 1)), attended(rounded.batch(slid, 1)));

  const CacheBatch mixed = cache.batch(both, 1);  // the other sequence has all of its first rows
  EXPECT_EQ(mixed.first, 3);
  AttentionInputs in;
  mixed.set(in);
  const std::int32_t page = mixed.block_table[0];
  for (std::int64_t d = 0; d < kD; ++d) {  // exact products, in f64
    EXPECT_EQ(load(in.k_first, 0, 0, 0, d), load(in.k_scale, page, 0, 0, 0) * load(in.k, page, 0, 0, d)) << d;
  }
  const std::vector<float> y = attended(mixed), int8 = attended(rounded.batch(both, 1));
  const std::size_t half = y.size() / 2;
  for (std::size_t n = 0; n < half; ++n) EXPECT_NEAR(y[n], int8[n], 1e-5) << n;
  EXPECT_NE(std::vector<float>(y.begin() + half, y.end()), std::vector<float>(int8.begin() + half, int8.end()));

  cache.slide(other, 2, 2);  // keeps the page of tokens 11 and 12
  EXPECT_EQ(cache.batch(std::vector<std::int64_t>{other}, 1).first, 2);
  cache.truncate(s, 0);
  append(cache, {s}, {{21, 22, 23, 24}});
  expect_first_rows(cache, s, {21, 22, 23, 24});
}

TEST(Cache, FirstRows_BadShape_IsRefused) {
  CacheShape shape = shape_with(DType::f32, 4, 3);
  shape.whole_first = 4;
  EXPECT_EQ(said_by([&] { KvCache cache(shape); }),
            "cache: whole_first is 4 but dtype is f32: only i8 rounds keys and values");
  shape.dtype = DType::i8;
  shape.whole_dtype = DType::i8;
  EXPECT_EQ(said_by([&] { KvCache cache(shape); }), "cache: whole_dtype is i8 but must be f32, f64, bf16 or f16");
  shape.whole_dtype = DType::f32;
  shape.whole_first = -1;
  EXPECT_EQ(said_by([&] { KvCache cache(shape); }), "cache: whole_first is -1 but must be at least 0");
  shape.whole_first = std::int64_t{1} << 60;
  EXPECT_EQ(said_by([&] { KvCache cache(shape); }),
            "cache: whole_first is 1152921504606846976: its rows are longer than any memory");
}

TEST(Cache, PagedKeys_SameRows_GiveTheOutputOfDenseKeys) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    KvCache cache(shape_with(dtype, 3, 40));
    const std::int64_t a = cache.add_sequence();
    std::vector<std::int64_t> tokens{1, 2, 3, 4, 5, 6, 7};
    append(cache, {a}, {tokens});
    const std::int64_t b = cache.fork(a);
    append(cache, {a, b}, {{8, 9}, {10, 11}});
    tokens.insert(tokens.end(), {10, 11});
    const CacheBatch batch = cache.batch(std::vector<std::int64_t>{b}, 2);
    const DType q_dtype = dtype == DType::i8 ? DType::f32 : dtype;
    const Shape q_shape{1, 2 * kHkv, 2, kD};
    const Shape y_shape{1, 2 * kHkv, 2, kDv};
    std::vector<std::uint8_t> q(2 * 2 * kHkv * kD * 4, 0x3E), paged(2 * 2 * kHkv * kDv * 4), plain(paged.size());
    AttentionOptions options;
    options.causality = Causality::causal;
    AttentionInputs in;
    in.q = {q.data(), q_dtype, q_shape, contiguous_strides(q_shape)};
    batch.set(in);
    AttentionOutputs out;
    out.y = {paged.data(), q_dtype, y_shape, contiguous_strides(y_shape)};
    attention_forward(out, in, options);

    const Stored k(dtype, tokens, false);
    const Stored v(dtype, tokens, true);
    AttentionInputs rows;
    rows.q = in.q;
    rows.k = k.view;
    rows.v = v.view;
    rows.k_scale = k.scale_view;
    rows.v_scale = v.scale_view;
    out.y.data = plain.data();
    attention_forward(out, rows, options);
    EXPECT_EQ(paged, plain) << dtype_name(dtype);
  }
}

TEST(Cache, SlidingWindow_OldPagesDropped_KeepsSinksAndPositions) {
  KvCache cache(shape_with(DType::f32, 4, 10));
  const std::int64_t s = cache.add_sequence();
  append(cache, {s}, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}});
  cache.slide(s, 2, 5);  // tokens 13 … 17 stay, and with them the page of 12
  expect_tokens(cache, s, {0, 1, 2, 3, 12, 13, 14, 15, 16, 17});
  EXPECT_EQ(cache.position(s), 18);
  EXPECT_EQ(cache.free_pages(), 7);
  append(cache, {s}, {{18, 19, 20, 21}});
  cache.slide(s, 4, 5);
  expect_tokens(cache, s, {0, 1, 2, 3, 16, 17, 18, 19, 20, 21});
  EXPECT_EQ(cache.position(s), 22);
  EXPECT_EQ(said_by([&] { cache.slide(s, 5, 5); }),
            "cache slide: 5 sinks fill 8 tokens of pages but sequence 0 has kept 4 so far");
  EXPECT_EQ(said_by([&] { cache.slide(s, std::int64_t{1} << 62, 5); }),
            "cache slide: sinks is 4611686018427387904 but must be in [0, 4611686018427387903]");
  cache.truncate(s, 6);
  EXPECT_EQ(cache.position(s), 18);
  cache.truncate(s, 4);
  EXPECT_EQ(cache.position(s), 4);
}

TEST(Cache, Append_BadArguments_IsRefusedAndChangesNothing) {
  KvCache cache(shape_with(DType::f32, 4, 3));
  const std::int64_t s = cache.add_sequence();
  append(cache, {s}, {{1, 2, 3, 4, 5}});
  const std::int64_t other = cache.add_sequence();
  EXPECT_EQ(said_by([&] {
              append(cache, {s, other}, {{6, 7, 8, 9}, {6, 7, 8, 9}});
            }),
            "cache append: 4 tokens for each of 2 sequences need 2 pages but 1 are free");
  expect_tokens(cache, s, {1, 2, 3, 4, 5});
  expect_tokens(cache, other, {});
  const std::vector<float> narrow(kHkv * kD);
  const std::vector<double> wide(kHkv * kDv);
  EXPECT_EQ(said_by([&] {
              cache.append(std::vector<std::int64_t>{s}, make_view(narrow.data(), Shape{1, kHkv, 1, kD}),
                           make_view(wide.data(), Shape{1, kHkv, 1, kDv}));
            }),
            "cache append: v has dtype f64 but k has dtype f32");
  EXPECT_EQ(said_by([&] { append(cache, {s, s}, {{6}, {7}}); }), "cache append: sequence 0 is there twice");
  EXPECT_EQ(said_by([&] { append(cache, {s, 5}, {{6}, {7}}); }), "cache append: 5 is no sequence");
  EXPECT_EQ(said_by([&] { cache.truncate(s, 6); }), "cache truncate: length is 6 but must be 0 to 5");
  EXPECT_EQ(said_by([&] { cache.batch(std::vector<std::int64_t>{s}, 6); }),
            "cache batch: T is 6 but sequence 0 has 5 tokens");
  EXPECT_EQ(said_by([&] { KvCache(shape_with(DType::f32, 0, 3)); }), "cache: page is 0 but must be at least 1 token");
  EXPECT_EQ(said_by([&] { KvCache(shape_with(DType::i32, 1, 3)); }),
            "cache: dtype is i32 but must be f32, f64, bf16, f16 or i8");
  EXPECT_EQ(said_by([&] { KvCache(shape_with(static_cast<DType>(99), 1, 3)); }),
            "cache: dtype is unknown (99) but must be f32, f64, bf16, f16 or i8");
  cache.grow(4);
  append(cache, {s, other}, {{6, 7, 8, 9}, {6, 7, 8, 9}});
  expect_tokens(cache, s, {1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST(Cache, Shape_LongerThanAnyMemory_IsRefusedWithoutPages) {
  EXPECT_NE(said_by([] {
              KvCache(shape_with(DType::f32, std::numeric_limits<std::int64_t>::max(), 0));
            }).find("is longer than any memory"),
            std::string::npos);
}

TEST(Cache, PlaceCache_BadShape_IsRefused) {
  CacheShape shape = shape_with(DType::f32, 4, 3);
  double memory[8];
  shape.kv_heads = -1;
  EXPECT_EQ(said_by([&] { place_cache(memory, shape); }), "cache: kv_heads is -1 but must be at least 1");
}

TEST(Cache, Append_SequencesThatShareAPage_CopiesAllButOne) {
  for (const std::int64_t pages : {3, 4}) {
    KvCache cache(shape_with(DType::f32, 4, pages));
    const std::int64_t a = cache.add_sequence();
    append(cache, {a}, {{1, 2}});
    const std::int64_t b = cache.fork(a), c = cache.fork(a);
    append(cache, {a, b, c}, {{3}, {4}, {5}});
    expect_tokens(cache, a, {1, 2, 3});
    expect_tokens(cache, b, {1, 2, 4});
    expect_tokens(cache, c, {1, 2, 5});
    EXPECT_EQ(cache.free_pages(), pages - 3);
  }
}

TEST(Cache, Append_SharerStaysOutOfTheBatch_CopiesForEach) {
  KvCache cache(shape_with(DType::f32, 4, 2));
  const std::int64_t a = cache.add_sequence();
  append(cache, {a}, {{1, 2}});
  const std::int64_t b = cache.fork(a), c = cache.fork(a);
  EXPECT_EQ(said_by([&] {
              append(cache, {a, b}, {{3}, {4}});
            }),
            "cache append: 1 tokens for each of 2 sequences need 2 pages but 1 are free");
  for (const std::int64_t s : {a, b, c}) expect_tokens(cache, s, {1, 2});
}

TEST(Cache, Append_TokensOneByOne_MovesTheListOfPagesRarely) {
  constexpr std::int64_t kTokens = 1000;
  KvCache cache(shape_with(DType::f32, 1, kTokens));
  const std::int64_t sequence = cache.add_sequence();
  const std::int32_t* pages = nullptr;
  int moves = 0;
  for (std::int64_t token = 0; token < kTokens; ++token) {
    append(cache, {sequence}, {{token}});
    if (cache.pages(sequence).data() == pages) continue;
    pages = cache.pages(sequence).data();
    ++moves;
  }
  EXPECT_LE(moves, 11);
}

TEST(Cache, MoveTo_CallersMemory_FreesItsOwnAndDoesNotGrow) {
  const CacheShape shape = shape_with(DType::f32, 4, 2);
  std::vector<double> memory(cache_bytes(shape) / sizeof(double) + 1);
  KvCache cache(shape);
  const std::int64_t s = cache.add_sequence();
  append(cache, {s}, {{1, 2, 3}});
  cache.move_to(place_cache(memory.data(), shape));
  EXPECT_EQ(said_by([&] { cache.grow(5); }), "cache grow: the memory is the caller's; move_to goes on in another");
  expect_tokens(cache, s, {1, 2, 3});
}

TEST(Cache, Storage_CallersMemory_HoldsThePages) {
  const CacheShape small = shape_with(DType::i8, 4, 2);
  const CacheShape large = shape_with(DType::i8, 4, 5);
  std::vector<double> memory(cache_bytes(small) / sizeof(double) + 1), more(cache_bytes(large) / sizeof(double) + 1);
  KvCache cache(place_cache(memory.data(), small));
  const std::int64_t s = cache.add_sequence();
  append(cache, {s}, {{1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(said_by([&] { cache.grow(5); }), "cache grow: the memory is the caller's; move_to goes on in another");
  cache.move_to(place_cache(more.data(), large));
  std::fill(memory.begin(), memory.end(), 0.0);
  append(cache, {s}, {{7, 8, 9, 10}});
  expect_tokens(cache, s, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
}

TEST(Cache, CallersMemory_OverlapsOrMisaligned_IsRefused) {
  const CacheShape shape = shape_with(DType::f32, 4, 2);
  std::vector<double> memory(cache_bytes(shape) / sizeof(double) + 1);
  const CacheTensors good = place_cache(memory.data(), shape);
  CacheTensors tensors = good;
  tensors.v.data = tensors.k.data;
  EXPECT_NE(said_by([&] { KvCache cache(tensors); }).find("cache: v overlaps k in memory"), std::string::npos);
  tensors = good;
  tensors.k.strides[2] = 0;
  EXPECT_NE(said_by([&] { KvCache cache(tensors); }).find("under which elements overlap"), std::string::npos);
  tensors = good;
  tensors.k.data = static_cast<char*>(good.k.data) + 1;
  EXPECT_NE(said_by([&] { KvCache cache(tensors); }).find("is not aligned to the 4 bytes of f32"), std::string::npos);
  tensors = good;
  tensors.v.strides[0] = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(said_by([&] { KvCache cache(tensors); }).find("reach outside the address space"), std::string::npos);
}

TEST(Cache, Append_MisalignedRows_IsRefused) {
  KvCache cache(shape_with(DType::f32, 4, 2));
  const std::int64_t s = cache.add_sequence();
  const std::vector<float> k(kHkv * kD + 1), v(kHkv * kDv);
  ConstTensorView keys = make_view(k.data(), Shape{1, kHkv, 1, kD});
  keys.data = static_cast<const char*>(keys.data) + 1;
  EXPECT_NE(said_by([&] {
              cache.append(std::vector<std::int64_t>{s}, keys, make_view(v.data(), Shape{1, kHkv, 1, kDv}));
            }).find("is not aligned to the 4 bytes of f32"),
            std::string::npos);
  EXPECT_EQ(cache.length(s), 0);
}

TEST(Cache, MoveTo_OverlappingMemory_IsRefusedUnlessInPlace) {
  const CacheShape small = shape_with(DType::f32, 4, 2);
  const std::int64_t page_elements = kHkv * 4 * (kD + kDv);
  std::vector<float> memory(static_cast<std::size_t>(6 * page_elements));
  // Interleaves k and v, so that more pages follow both.
  const auto tensors = [&](std::int64_t first, std::int64_t pages) {
    float* const at = memory.data() + first * page_elements;
    CacheTensors made;
    made.k = make_view(at, Shape{pages, kHkv, 4, kD}, Shape{page_elements, 4 * kD, kD, 1});
    made.v = make_view(at + kHkv * 4 * kD, Shape{pages, kHkv, 4, kDv}, Shape{page_elements, 4 * kDv, kDv, 1});
    return made;
  };
  KvCache cache(tensors(0, small.pages));
  const std::int64_t s = cache.add_sequence();
  append(cache, {s}, {{1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(said_by([&] { cache.move_to(tensors(1, 3)); }), "cache move_to: k overlaps the present k in memory");
  expect_tokens(cache, s, {1, 2, 3, 4, 5, 6});
  cache.move_to(tensors(0, 3));
  append(cache, {s}, {{7, 8, 9, 10}});
  expect_tokens(cache, s, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  cache.move_to(tensors(3, 3));
  expect_tokens(cache, s, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  KvCache owner(small);
  EXPECT_EQ(said_by([&] { owner.move_to(owner.tensors()); }), "cache move_to: k overlaps the present k in memory");
}

TEST(Convert, Conversion_SixteenBitAndInt8_RoundsToNearest) {
  const std::vector<float> x{0.0F, 1.0F, -3.14159F, 65504.0F, 1e-8F, 100.3F};
  const auto n = static_cast<std::int64_t>(x.size());
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    std::vector<double> stored(x.size());
    std::vector<float> back(x.size());
    const TensorView view{stored.data(), dtype, {1, 1, 1, n}, contiguous_strides({1, 1, 1, n})};
    convert(view, make_vector_view(x.data(), n));
    convert(make_vector_view(back.data(), n), view);
    std::vector<double> one(1);
    for (std::int64_t i = 0; i < n; ++i) {
      store_element(one.data(), dtype, 0, x[static_cast<std::size_t>(i)]);
      EXPECT_EQ(back[static_cast<std::size_t>(i)], load_element(one.data(), dtype, 0)) << dtype_name(dtype);
    }
  }
  std::vector<std::int8_t> bytes(6);
  std::vector<float> scale(2);
  const std::vector<float> rows{1.0F, -2.0F, 0.5F, 0.0F, 0.0F, 0.0F};
  quantize(make_view(bytes.data(), Shape{1, 1, 2, 3}), make_view(scale.data(), Shape{1, 1, 2, 1}),
           make_view(rows.data(), Shape{1, 1, 2, 3}));
  EXPECT_EQ(bytes, (std::vector<std::int8_t>{64, -127, 32, 0, 0, 0}));
  EXPECT_EQ(scale, (std::vector<float>{2.0F / 127.0F, 0.0F}));
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> broken{kNaN, 5.0F, 1.0F, 1.0F, -kInfinity, 2.0F};
  quantize(make_view(bytes.data(), Shape{1, 1, 2, 3}), make_view(scale.data(), Shape{1, 1, 2, 1}),
           make_view(broken.data(), Shape{1, 1, 2, 3}));
  EXPECT_EQ(bytes, std::vector<std::int8_t>(6, 0));
  EXPECT_TRUE(std::isnan(scale[0])) << scale[0];
  EXPECT_EQ(scale[1], kInfinity);
  EXPECT_EQ(said_by([&] { convert(make_vector_view(scale.data(), 2), make_vector_view(x.data(), n)); }),
            "convert: to has shape (1,1,1,2) but from is (1,1,1,6)");
  EXPECT_EQ(said_by([&] { quantize(make_vector_view(scale.data(), 2), {}, make_vector_view(x.data(), n)); }),
            "quantize: to has dtype f32 but must be i8");
}

TEST(Convert, Conversion_OverlappingViews_IsRefused) {
  std::vector<float> x(8, 1.0F);
  EXPECT_EQ(said_by([&] { convert(make_vector_view(x.data(), 4), make_vector_view(x.data() + 2, 4)); }).substr(0, 25),
            "convert: to overlaps from");
  EXPECT_EQ(said_by([&] {
              convert(make_view(x.data(), Shape{1, 1, 2, 2}, {0, 0, 0, 1}),
                      make_view(std::as_const(x).data() + 4, Shape{1, 1, 2, 2}));
            }),
            "convert: to has shape (1,1,2,2) and strides (0,0,0,1) under which elements overlap");
  EXPECT_EQ(x, std::vector<float>(8, 1.0F));
  convert(make_view(x.data(), Shape{1, 1, 4, 1}, {0, 0, 2, 1}),
          make_view(std::as_const(x).data() + 1, Shape{1, 1, 4, 1}, {0, 0, 2, 1}));  // interleaved
}

TEST(Convert, Conversion_ManyRowsWithoutElements_ReturnsAtOnce) {
  float x = 0.0F;
  const Shape shape{std::int64_t{1} << 40, 1, 1, 0};
  convert(make_view(&x, shape), make_view(static_cast<const float*>(&x), shape));
}

TEST(Quantize, ManyHeadsWithoutRows_ReturnsAtOnce) {
  float x = 0.0F;
  std::int8_t to = 0;
  const Shape shape{std::int64_t{1} << 40, 1, 0, 4}, scales{std::int64_t{1} << 40, 1, 0, 1};
  quantize(make_view(&to, shape), make_view(&x, scales), make_view(static_cast<const float*>(&x), shape));
}

TEST(Views, HeadsView_TokensByHeads_HasTheRightStrides) {
  std::vector<float> memory(2 * 3 * 4 * 5);
  const TensorView view = make_bthd_view(memory.data(), 2, 3, 4, 5);
  EXPECT_EQ(view.shape, (Shape{2, 4, 3, 5}));
  EXPECT_EQ(offset_of(view, 1, 2, 1, 3), ((1 * 3 + 1) * 4 + 2) * 5 + 3);
}

}  // namespace
}  // namespace headgate::testing
