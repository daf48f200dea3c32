// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "library/attention/elementary.hpp"
#include "library/core/gate_functions.hpp"
#include "verify/oracle/gates.hpp"

// Checks the bounds that docs/reference/numerics.md states for 2^x and the gate functions, on every vector target.

namespace headgate::numerics {
namespace {

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <typename T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr long double kRoundoff = 0x1p-24L;
  static constexpr long double kExp2 = 2e-7L;
  static constexpr float kLowest = -126.0F;  // 2^x is normal from here on
  static constexpr long double kTiny = 0x1p-126L;
  static constexpr std::uint32_t kStep = 1021;  // a prime, so that the last bits take all values
};
template <>
struct Limits<double> {
  static constexpr long double kRoundoff = 0x1p-53L;
  static constexpr long double kExp2 = 4e-16L;
  static constexpr double kLowest = -1022.0;
  static constexpr long double kTiny = 0x1p-1022L;
  static constexpr std::uint64_t kStep = 1099511627791;
};

template <typename T>
void append_between(T low, T high, T sign, Bits<T> step, std::vector<T>& to) {
  for (auto bits = std::bit_cast<Bits<T>>(low); bits <= std::bit_cast<Bits<T>>(high); bits += step) {
    to.push_back(sign * std::bit_cast<T>(bits));
  }
}

/// Returns both signs, spread evenly over the bit patterns of 2^-30 … high.
template <typename T>
std::vector<T> dense(T high, Bits<T> step) {
  std::vector<T> x{T{0}};
  append_between(T{0x1p-30}, high, T{1}, step, x);
  append_between(T{0x1p-30}, high, T{-1}, step, x);
  return x;
}

template <typename T>
std::vector<T> apply(const Target& target, const Function& f, const std::vector<T>& x) {
  std::vector<T> y(x.size(), std::numeric_limits<T>::quiet_NaN());
  evaluate(target, f, x.data(), x.size(), y.data());
  return y;
}

template <typename T>
class Elementary : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Elementary, Types);

TYPED_TEST(Elementary, Exp2_WholeRange_StaysWithinItsRelativeError) {
  using T = TypeParam;
  const std::vector<T> x = dense<T>(-Limits<T>::kLowest, Limits<T>::kStep);
  for (const Target& target : runnable_targets()) {
    const std::vector<T> y = apply(target, {Part::exp2}, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double exact = std::exp2(static_cast<long double>(x[i]));
      ASSERT_LE(std::abs(y[i] - exact), Limits<T>::kExp2 * exact) << target.name << ": 2^" << x[i] << " = " << y[i];
    }
  }
}

TYPED_TEST(Elementary, Exp2_BelowTheNormalNumbers_IsZero) {
  using T = TypeParam;
  std::vector<T> x;
  append_between<T>(-Limits<T>::kLowest, 1 - Limits<T>::kLowest, T{-1}, Limits<T>::kStep, x);
  for (const Target& target : runnable_targets()) {
    const std::vector<T> y = apply(target, {Part::exp2}, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double exact = std::exp2(static_cast<long double>(x[i]));
      ASSERT_LT(std::abs(y[i] - exact), Limits<T>::kTiny) << target.name << ": 2^" << x[i] << " = " << y[i];
    }
    for (const T hidden :
         {Limits<T>::kLowest - 1, 2 * Limits<T>::kLowest, std::numeric_limits<T>::lowest(), -kInfinity<T>}) {
      EXPECT_EQ(apply<T>(target, {Part::exp2}, {hidden}).front(), 0) << target.name << ": 2^" << hidden;
    }
  }
}

TYPED_TEST(Elementary, Exp2_IntegerArgument_IsExact) {
  using T = TypeParam;
  for (const Target& target : runnable_targets()) {
    for (T n = Limits<T>::kLowest; n <= -Limits<T>::kLowest; ++n) {
      ASSERT_EQ(apply<T>(target, {Part::exp2}, {n}).front(), std::exp2(n)) << target.name << ": 2^" << n;
    }
  }
}

// The tolerance rule counts tanh among the functions on an element's path, under a softcap.
TYPED_TEST(Elementary, Tanh_WholeRange_StaysWithinItsRelativeError) {
  using T = TypeParam;
  const std::vector<T> x = dense<T>(T{64}, Limits<T>::kStep);
  for (const Target& target : runnable_targets()) {
    const std::vector<T> y = apply(target, {Part::tanh}, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double exact = std::tanh(static_cast<long double>(x[i]));
      ASSERT_LE(std::abs(y[i] - exact), 5 * Limits<T>::kRoundoff * std::abs(exact))
          << target.name << ": tanh " << x[i] << " = " << y[i];
    }
  }
}

TYPED_TEST(Elementary, EveryFunction_NaN_IsNaN) {
  using T = TypeParam;
  const auto quiet = std::bit_cast<Bits<T>>(std::numeric_limits<T>::quiet_NaN());
  const auto all_ones = static_cast<Bits<T>>(-1);
  std::vector<Function> functions{{Part::exp2}};
  for (const GateFunction& row : kGateFunctions) functions.push_back({Part::gate_value, row.value});
  for (const Target& target : runnable_targets()) {
    for (const Function& f : functions) {
      // The payload, or a set sign, must not affect the arithmetic on exponents.
      for (const Bits<T> bits : {quiet, quiet + 1, quiet + 0x155, all_ones, all_ones >> 1}) {
        const T y = apply<T>(target, f, {std::bit_cast<T>(bits)}).front();
        EXPECT_TRUE(std::isnan(y)) << target.name << ", gate_fn " << static_cast<int>(f.fn) << ", bits " << std::hex
                                   << bits << ": " << y;
      }
    }
  }
}

long double exact(const Function& f, long double z) {
  const auto terms = reference::gate_terms(f.fn, z);
  if (f.part == Part::gate_value) return terms.value;
  return f.part == Part::gate_ratio ? terms.ratio.value() : terms.slope;
}

/// Allows (kTerms + 2|z|) roundoffs of the result; for the derivative of silu, of its terms, which cancel near z =
/// −1.28. The part with |z| is the rounding of the argument of e^−|z|.
template <typename T>
long double bound(const Function& f, long double z) {
  constexpr long double kTerms = 8.0L;
  long double magnitude = std::abs(exact(f, z));
  if (f.fn == GateFn::silu && f.part == Part::gate_derivative) {
    magnitude = reference::sigmoid(z) * (1 + std::abs(z) * reference::sigmoid(-z));
  }
  return (kTerms + 2 * std::abs(z)) * Limits<T>::kRoundoff * magnitude;
}

template <typename T>
void check_gate(const Function& f, const std::vector<T>& z) {
  std::vector<long double> expected, tolerance;
  for (const T at : z) {
    expected.push_back(exact(f, at));
    tolerance.push_back(bound<T>(f, at));
  }
  for (const Target& target : runnable_targets()) {
    const std::vector<T> y = apply(target, f, z);
    for (std::size_t i = 0; i < z.size(); ++i) {
      ASSERT_LE(std::abs(y[i] - expected[i]), tolerance[i])
          << target.name << ", gate_fn " << static_cast<int>(f.fn) << ", part " << static_cast<int>(f.part) << ", z "
          << z[i] << ": " << y[i];
    }
  }
}

TYPED_TEST(Elementary, GateFunctions_BothTails_KeepTheirRelativeAccuracy) {
  using T = TypeParam;
  // e^−|z| is a normal number above this bound.
  const std::vector<T> z = dense<T>(static_cast<T>(0.69 * -Limits<T>::kLowest), 31 * Limits<T>::kStep);
  for (const GateFunction& row : kGateFunctions) {
    for (const Part part : {Part::gate_value, Part::gate_derivative, Part::gate_ratio}) {
      if (part != Part::gate_ratio || !row.has_zero) check_gate(Function{part, row.value}, z);
    }
  }
}

TYPED_TEST(Elementary, GateFunctions_LargestArguments_ReachTheirLimits) {
  using T = TypeParam;
  const T far = std::numeric_limits<T>::max();
  for (const Target& target : runnable_targets()) {
    const auto at = [&](Part part, GateFn fn, T z) { return apply<T>(target, {part, fn}, {z}).front(); };
    EXPECT_EQ(at(Part::gate_value, GateFn::sigmoid, far), 1);
    EXPECT_EQ(at(Part::gate_value, GateFn::sigmoid, -far), 0);
    EXPECT_EQ(at(Part::gate_ratio, GateFn::sigmoid, far), 0);
    EXPECT_EQ(at(Part::gate_ratio, GateFn::sigmoid, -far), 1);
    EXPECT_EQ(at(Part::gate_value, GateFn::sigmoid2, far), 2);
    EXPECT_EQ(at(Part::gate_value, GateFn::ns_sigmoid, -far), T{0.5});
    EXPECT_EQ(at(Part::gate_value, GateFn::softplus, far), far);
    EXPECT_EQ(at(Part::gate_value, GateFn::softplus, -far), 0);
    EXPECT_EQ(at(Part::gate_ratio, GateFn::softplus, -far), 1);
    EXPECT_EQ(at(Part::gate_value, GateFn::silu, far), far);
    EXPECT_EQ(at(Part::gate_value, GateFn::silu, -far), 0);
    EXPECT_EQ(at(Part::gate_value, GateFn::sigmoid, 0), T{0.5});
  }
}

}  // namespace
}  // namespace headgate::numerics
