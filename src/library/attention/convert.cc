// SPDX-License-Identifier: Apache-2.0
#include "headgate/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "library/attention/convert.hpp"
#include "library/call/call.hpp"
#include "library/core/convert.hpp"
#include "library/core/element.hpp"

namespace headgate {
namespace {

void check_numbers(Call& call, const ConstTensorView& from) {
  call.input({"from", from}, {DType::f32, DType::f64, DType::bf16, DType::f16});
}

/// Calls visit(a, b, c) for all indices of the first three dimensions of `shape`.
template <class Visit>
void for_each_row(const Shape& shape, const Visit& visit) {
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) visit(a, b, c);
    }
  }
}

float widened(float x) { return x; }
double widened(double x) { return x; }
float widened(BFloat16 x) { return to_f32(x); }
float widened(Float16 x) { return to_f32(x); }

template <typename To, typename From>
To rounded(From x) {
  if constexpr (std::is_same_v<To, BFloat16>) {
    return to_bf16(static_cast<float>(widened(x)));
  } else if constexpr (std::is_same_v<To, Float16>) {
    return to_f16(static_cast<float>(widened(x)));
  } else {
    return static_cast<To>(widened(x));
  }
}

template <typename To, typename From>
void convert_rows(const TensorView& to, const ConstTensorView& from) {
  const std::int64_t n = to.shape[3], to_step = to.strides[3], from_step = from.strides[3];
  for_each_row(to.shape, [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    To* out = static_cast<To*>(to.data) + offset_of(to, a, b, c, 0);
    const From* in = static_cast<const From*>(from.data) + offset_of(from, a, b, c, 0);
    if (to_step == 1 && from_step == 1) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = rounded<To>(in[i]);
    } else {
      for (std::int64_t i = 0; i < n; ++i) out[i * to_step] = rounded<To>(in[i * from_step]);
    }
  });
}

template <typename To>
void convert_to(const TensorView& to, const ConstTensorView& from) {
  switch (from.dtype) {
    case DType::f64: return convert_rows<To, double>(to, from);
    case DType::bf16: return convert_rows<To, BFloat16>(to, from);
    case DType::f16: return convert_rows<To, Float16>(to, from);
    default: return convert_rows<To, float>(to, from);
  }
}

template <typename From>
void quantize_rows(const TensorView& to, const TensorView& scale, const ConstTensorView& from) {
  constexpr float kLargest = 127.0F;
  const std::int64_t n = from.shape[3];
  for_each_row(from.shape, [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    const From* in = static_cast<const From*>(from.data) + offset_of(from, a, b, c, 0);
    auto* out = static_cast<std::int8_t*>(to.data) + offset_of(to, a, b, c, 0);
    float largest = 0.0F;
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = std::abs(static_cast<float>(widened(in[i * from.strides[3]])));
      if (x > largest || std::isnan(x)) largest = x;  // once NaN, `largest` stays NaN: x > NaN is false
    }
    const float s = largest / kLargest;
    const bool divides = s > 0.0F && std::isfinite(s);
    // Clamps to ±127: if the scale is subnormal, its few significant bits let x / s exceed 127.
    for (std::int64_t i = 0; i < n; ++i) {
      const float x = divides ? static_cast<float>(widened(in[i * from.strides[3]])) / s : 0.0F;
      out[i * to.strides[3]] = static_cast<std::int8_t>(std::lrint(std::clamp(x, -kLargest, kLargest)));
    }
    static_cast<float*>(scale.data)[offset_of(scale, a, b, c, 0)] = s;
  });
}

}  // namespace

void convert_unchecked(const TensorView& to, const ConstTensorView& from) {
  switch (to.dtype) {
    case DType::f64: return convert_to<double>(to, from);
    case DType::bf16: return convert_to<BFloat16>(to, from);
    case DType::f16: return convert_to<Float16>(to, from);
    default: return convert_to<float>(to, from);
  }
}

void quantize_unchecked(const TensorView& to, const TensorView& scale, const ConstTensorView& from) {
  switch (from.dtype) {
    case DType::f64: return quantize_rows<double>(to, scale, from);
    case DType::bf16: return quantize_rows<BFloat16>(to, scale, from);
    case DType::f16: return quantize_rows<Float16>(to, scale, from);
    default: return quantize_rows<float>(to, scale, from);
  }
}

void convert(const TensorView& to, const ConstTensorView& from) {
  Call call("convert");
  check_numbers(call, from);
  call.output({"to", to}, {DType::f32, DType::f64, DType::bf16, DType::f16});
  call.shape({"to", to}, "from", from.shape);
  call.no_overlap();
  if (from.numel() > 0) convert_unchecked(to, from);
}

void quantize(const TensorView& to, const TensorView& scale, const ConstTensorView& from) {
  Call call("quantize");
  check_numbers(call, from);
  call.output({"to", to}, {DType::i8});
  call.output({"scale", scale}, {DType::f32});
  call.shape({"to", to}, "from", from.shape);
  call.shape({"scale", scale}, "that of its rows", {from.shape[0], from.shape[1], from.shape[2], 1});
  call.no_overlap();
  // Rows without features still need their scale, which is 0. Without rows, a loop over the heads would be in vain.
  if (scale.numel() > 0) quantize_unchecked(to, scale, from);
}

}  // namespace headgate
