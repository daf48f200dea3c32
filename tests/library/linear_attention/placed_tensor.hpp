// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "headgate/error.hpp"
#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "library/core/element.hpp"
#include "verify/slab.hpp"
#include "verify/tolerance.hpp"

// Tensors between guards, filled at random and compared with an oracle, for the operations around linear attention.

namespace headgate {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr DType kFloatDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

inline std::string dtype_test_name(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

/// Runs `check` on every vector target that this CPU has, then restores the default.
inline void on_every_target(const std::function<void()>& check) {
  for (const std::string& target : supported_targets()) {
    SCOPED_TRACE(target);
    set_target(target);
    check();
  }
  set_target("");
}

using Random = std::mt19937_64;

inline std::int64_t draw(Random& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}
inline DType draw_dtype(Random& random, DType dtype) { return draw(random, 0, 1) == 0 ? dtype : DType::f32; }

/// A tensor in guarded memory of its own; poison until it is filled.
class PlacedTensor {
 public:
  PlacedTensor() = default;
  PlacedTensor(DType dtype, const Shape& shape, const Shape& strides)
      : view_(dtype == DType::none ? TensorView() : slab_.place(dtype, shape, strides)) {}
  PlacedTensor(DType dtype, const Shape& shape) : PlacedTensor(dtype, shape, contiguous_strides(shape)) {}
  PlacedTensor(PlacedTensor&&) = default;
  PlacedTensor& operator=(PlacedTensor&&) = default;

  const TensorView& view() const { return view_; }
  void poison() { slab_.poison(); }
  bool spilled() const { return slab_.spilled(); }

  /// value(i0, i1, i2, i3) in every element, rounded to the dtype.
  void fill(const std::function<double(std::int64_t, std::int64_t, std::int64_t, std::int64_t)>& value) const {
    each([&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
      store(view_, a, b, c, d, value(a, b, c, d));
    });
  }
  void fill_random(Random& random, double scale = 1.0) const {
    std::uniform_real_distribution<double> uniform(-2.0 * scale, 2.0 * scale);
    fill([&](auto...) { return uniform(random); });
  }

  /// The elements' bytes in the order of the shape.
  std::vector<std::uint8_t> bits() const {
    std::vector<std::uint8_t> all;
    const auto size = static_cast<std::int64_t>(dtype_bytes(view_.dtype));
    each([&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
      const auto* first = static_cast<const std::uint8_t*>(view_.data) + offset_of(view_, a, b, c, d) * size;
      all.insert(all.end(), first, first + size);
    });
    return all;
  }

 private:
  template <class Visit>
  void each(const Visit& visit) const {
    const Shape& n = view_.shape;
    for (std::int64_t a = 0; a < n[0]; ++a) {
      for (std::int64_t b = 0; b < n[1]; ++b) {
        for (std::int64_t c = 0; c < n[2]; ++c) {
          for (std::int64_t d = 0; d < n[3]; ++d) visit(a, b, c, d);
        }
      }
    }
  }

  verify::Slab slab_{verify::Placement::guarded};
  TensorView view_;
};

/// Expects that every element is within its tolerance, and nothing beside the tensor written. `terms`: as in
/// Tolerance::of.
inline void expect_near(const char* name, const PlacedTensor& actual, const std::vector<double>& expected,
                        const std::vector<double>& magnitude, DType compute, std::int64_t terms) {
  const TensorView& view = actual.view();
  if (!view.present()) return;
  ASSERT_EQ(view.numel(), static_cast<std::int64_t>(expected.size())) << name;
  ASSERT_EQ(magnitude.size(), expected.size()) << name;
  EXPECT_FALSE(actual.spilled()) << name << ": bytes outside the tensor were written";
  const verify::Tolerance tolerance = verify::Tolerance::of(compute, view.dtype, terms);
  const Shape& n = view.shape;
  for (std::int64_t at = 0; at < view.numel(); ++at) {
    const std::int64_t d = at % n[3], c = at / n[3] % n[2], b = at / (n[3] * n[2]) % n[1],
                       a = at / (n[3] * n[2] * n[1]);
    const auto i = static_cast<std::size_t>(at);
    const double value = load(view, a, b, c, d), most = tolerance(expected[i], magnitude[i]);
    ASSERT_LE(verify::error_ratio(value, expected[i], most, view.dtype), 1.0)
        << name << "[" << a << "," << b << "," << c << "," << d << "] = " << value << ", expected " << expected[i]
        << " ± " << most;
  }
}

/// Expects an Error whose message has `said` in it.
inline void expect_refused(const std::function<void()>& call, const std::string& said) {
  try {
    call();
    ADD_FAILURE() << "accepted; not refused with: " << said;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what() << "\nwithout: " << said;
  }
}

}  // namespace headgate
