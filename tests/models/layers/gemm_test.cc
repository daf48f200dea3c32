// SPDX-License-Identifier: Apache-2.0
#include "models/layers/gemm.hpp"

#include <omp.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

#include "library/core/convert.hpp"
#include "models/layers/support.hpp"

namespace headgate::layers {
namespace {

// Set before the first product, because oneDNN reads it once.
const bool kAsksForBf16 = setenv("ONEDNN_DEFAULT_FPMATH_MODE", "ANY", 1) == 0;

template <typename T>
T rounded(double x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bf16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

template <typename T>
double value_of(T x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_f32(x);
  } else {
    return x;
  }
}

template <typename T>
constexpr DType kDtype = std::is_same_v<T, BFloat16> ? DType::bf16
                         : std::is_same_v<T, float>  ? DType::f32
                                                     : DType::f64;

template <typename T>
std::vector<T> random_elements(Random& random, std::int64_t n) {
  std::vector<T> out;
  for (const double x : random_values(random, n)) out.push_back(rounded<T>(x));
  return out;
}

/// Holds the operands of out(M,N) = or += a(M,K) b(K,N), with gaps between rows.
template <typename In, typename Out>
struct GemmSample {
  std::int64_t M, N, K, gap;
  Form a_form, b_form;
  std::vector<In> a, b;
  std::vector<Out> base;

  GemmSample(Random& random, std::int64_t M_in, std::int64_t N_in, std::int64_t K_in, Form a_form_in, Form b_form_in)
      : M(M_in),
        N(N_in),
        K(K_in),
        gap(random_int(random, 0, 3)),
        a_form(a_form_in),
        b_form(b_form_in),
        a(random_elements<In>(random, (M + gap) * (K + gap))),
        b(random_elements<In>(random, (N + gap) * (K + gap))),
        base(random_elements<Out>(random, M * (N + gap))) {}

  template <typename T>
  View<const T, 2> stored(const std::vector<T>& values, std::int64_t rows, std::int64_t columns, Form form) const {
    if (form == Form::transposed) std::swap(rows, columns);
    return {values.data(), {rows, columns}, {columns + gap, 1}};
  }
  Product<In, Out> product(std::vector<Out>& out, Update update) const {
    return {
        {out.data(), {M, N}, {N + gap, 1}}, stored(a, M, K, a_form), a_form, stored(b, K, N, b_form), b_form, update};
  }
  std::vector<Out> result(Update update, int threads) const {
    std::vector<Out> out = base;
    multiply(product(out, update), with_threads(threads));
    return out;
  }
  /// Compares each element of the result, and what lies between its rows, with the sum of products.
  void check(Update update, int threads) const {
    const std::vector<Out> out = result(update, threads);
    std::vector<Out> ignored;
    const Product<In, Out> p = product(ignored, update);
    for (std::int64_t i = 0; i < M * (N + gap) && !testing::Test::HasNonfatalFailure(); ++i) {
      const std::int64_t m = i / (N + gap), n = i % (N + gap);
      const auto at = static_cast<std::size_t>(i);
      Number sum(value_of(base[at]));
      if (n < N && update == Update::overwrite) sum = {};
      for (std::int64_t k = 0; n < N && k < K; ++k) {
        const double left = value_of(a_form == Form::stored ? p.a(m, k) : p.a(k, m));
        sum += Number(left) * Number(value_of(b_form == Form::stored ? p.b(k, n) : p.b(n, k)));
      }
      const double tolerance = verify::Tolerance::of(kDtype<In>, kDtype<Out>, sum.terms)(sum.value, sum.magnitude);
      EXPECT_LE(verify::error_ratio(value_of(out[at]), sum.value, tolerance, kDtype<Out>), 1.0)
          << M << 'x' << N << 'x' << K << ", row " << m << ", column " << n << ": " << value_of(out[at]) << " for "
          << sum.value;
    }
  }
};

constexpr Form kForms[] = {Form::stored, Form::transposed};

template <typename In, typename Out>
void check_products() {
  Random random(91);
  const std::int64_t sizes[][3] = {{1, 1, 1}, {1, 7, 9}, {7, 1, 9}, {2, 70, 3}, {65, 33, 20}, {40, 100, 50}};
  for (const auto& [M, N, K] : sizes) {
    for (const Form a_form : kForms) {
      for (const Form b_form : kForms) {
        const GemmSample<In, Out> sample(random, M, N, K, a_form, b_form);
        for (const Update update : {Update::overwrite, Update::add}) sample.check(update, 1);
        sample.check(Update::add, 3);
      }
    }
  }
}

TEST(Gemm, F32_AnySizesAndForms_MatchTheFormula) { check_products<float, float>(); }
TEST(Gemm, F64_AnySizesAndForms_MatchTheFormula) { check_products<double, double>(); }
TEST(Gemm, Bf16ToF32_AnySizesAndForms_MatchTheFormula) { check_products<BFloat16, float>(); }
TEST(Gemm, Bf16ToBf16_AnySizesAndForms_MatchTheFormula) { check_products<BFloat16, BFloat16>(); }

TEST(Gemm, F32_EnvironmentAsksForBf16_StaysF32) {
  ASSERT_TRUE(kAsksForBf16);
  constexpr std::int64_t kSize = 96;
  constexpr float kFine = 1.0F + 0x1p-14F;  // bf16 would lose the addend, TF32 too; f32 sums 96 exactly
  const std::vector<float> a(kSize * kSize, kFine), b(kSize * kSize, 1.0F);
  for (const Form form : kForms) {
    std::vector<float> out(kSize * kSize);
    multiply(Product<float>{view_of(out, kSize, kSize), view_of(a, kSize, kSize), form, view_of(b, kSize, kSize), form,
                            Update::overwrite},
             with_threads());
    EXPECT_EQ(out, std::vector<float>(out.size(), kFine * kSize));
  }
}

/// Sums of bf16 products are in f32: an addend of half of the last bit of bf16 counts.
TEST(Gemm, Bf16_SmallAddends_AreNotLost) {
  constexpr std::int64_t kSize = 64;
  std::vector<BFloat16> a(kSize * kSize, to_bf16(0x1p-10F));
  for (std::int64_t i = 0; i < kSize; ++i) a[static_cast<std::size_t>(i * kSize)] = to_bf16(1.0F);
  const std::vector<BFloat16> b(kSize * kSize, to_bf16(1.0F));
  std::vector<float> out(kSize * kSize);
  multiply(Product<BFloat16, float>{view_of(out, kSize, kSize), view_of(a, kSize, kSize), Form::stored,
                                    view_of(b, kSize, kSize), Form::stored, Update::overwrite},
           with_threads());
  EXPECT_EQ(out, std::vector<float>(out.size(), 1.0F + 63 * 0x1p-10F));
}

TEST(Gemm, Products_NoSummands_AreZeroOrUnchanged) {
  const std::vector<float> nothing(1);
  const View<const float, 2> a(nothing.data(), {2, 0}), b(nothing.data(), {0, 3});
  std::vector<float> out(6, 5.0F);
  multiply(Product<float>{view_of(out, 2, 3), a, Form::stored, b, Form::stored, Update::add}, with_threads());
  EXPECT_EQ(out, std::vector<float>(6, 5.0F));
  multiply(Product<float>{view_of(out, 2, 3), a, Form::stored, b, Form::stored, Update::overwrite}, with_threads());
  EXPECT_EQ(out, std::vector<float>(6, 0.0F));
}

TEST(Gemm, Overwrite_OutputHoldsNan_ReplacesIt) {
  std::vector<float> out(64 * 64, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> ones(64 * 64, 1.0F);
  multiply(Product<float>{view_of(out, 64, 64), view_of(ones, 64, 64), Form::stored, view_of(ones, 64, 64),
                          Form::transposed, Update::overwrite},
           with_threads());
  EXPECT_EQ(out, std::vector<float>(out.size(), 64.0F));
}

template <typename In, typename Out>
void check_same_bits(int threads) {
  Random random(92);
  for (const Form a_form : kForms) {
    GemmSample<In, Out> sample(random, 300, 200, 150, a_form, Form::transposed);
    const std::vector<Out> first = sample.result(Update::add, threads);
    const auto same = [&](const std::vector<Out>& other) {
      for (std::size_t i = 0; i < first.size(); ++i) {
        if (value_of(first[i]) != value_of(other[i])) return false;
      }
      return true;
    };
    for (int run = 0; run < 5; ++run) EXPECT_TRUE(same(sample.result(Update::add, threads)));
    // Operands that lie at another alignment.
    std::vector<In> moved(sample.a.size() + 1);
    std::copy(sample.a.begin(), sample.a.end(), moved.begin() + 1);
    std::vector<Out> out = sample.base;
    Product<In, Out> product = sample.product(out, Update::add);
    product.a.data = moved.data() + 1;
    multiply(product, with_threads(threads));
    EXPECT_TRUE(same(out));
  }
}

TEST(Gemm, SameThreads_Repeated_GiveTheSameBits) {
  for (const int threads : {1, 2, 3}) {
    check_same_bits<float, float>(threads);
    check_same_bits<double, double>(threads);
    check_same_bits<BFloat16, float>(threads);
    check_same_bits<BFloat16, BFloat16>(threads);
  }
}

TEST(Gemm, OpenMpThreads_AfterAProduct_AreAsBefore) {
  const int before = omp_get_max_threads();
  Random random(93);
  (void)GemmSample<float, float>(random, 40, 40, 40, Form::stored, Form::stored).result(Update::overwrite, 1);
  (void)GemmSample<BFloat16, float>(random, 40, 40, 40, Form::stored, Form::stored).result(Update::overwrite, 1);
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(Gemm, Description_OfThisBuild_NamesTheLibrary) {
  EXPECT_TRUE(gemm_description().starts_with("oneDNN ") || gemm_description().starts_with("OpenBLAS "))
      << gemm_description();
}

// --- signals -----------------------------------------------------------------------------------------------------

std::atomic<int> handled = 0, off_the_stack = 0;
std::uintptr_t stack_begin = 0, stack_end = 0;

void note_stack(int /*signal*/) {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  ++handled;
  if (here < stack_begin || here >= stack_end) ++off_the_stack;
}

/// Reads where the calling thread's stack lies.
void find_stack() {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  void* begin = nullptr;
  std::size_t bytes = 0;
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  stack_begin = reinterpret_cast<std::uintptr_t>(begin);
  stack_end = stack_begin + bytes;
}

TEST(GemmSignals, Handler_DuringProducts_RunsOnTheStackOfItsThread) {
  find_stack();
  struct sigaction action {
  }, before{};
  action.sa_handler = note_stack;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  const std::vector<float> a(512 * 1024, 1.0F), b(64 * 1024, 1.0F);
  std::vector<float> out(512 * 64);
  const Product<float> product{view_of(out, 512, 64), view_of(a, 512, 1024), Form::stored,
                               view_of(b, 1024, 64),  Form::stored,          Update::overwrite};
  {
    const pthread_t target = pthread_self();
    const std::jthread sender([target](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pthread_kill(target, SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    for (int i = 0; i < 300 || handled < 50; ++i) multiply(product, with_threads(1));
  }
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(out.front(), 1024.0F);
  EXPECT_EQ(off_the_stack, 0) << "of " << handled << " calls";
}

}  // namespace
}  // namespace headgate::layers
