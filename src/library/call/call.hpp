// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headgate/runtime.hpp"
#include "headgate/tensor.hpp"
#include "library/call/overlap.hpp"
#include "library/core/check.hpp"
#include "library/core/element.hpp"
#include "library/core/format.hpp"

// Checks the tensor arguments of a call.

namespace headgate {

/// Largest number of bytes that a view may span. The limit exceeds any address space (57 bits), and the sum of a few
/// spans still fits in int64.
inline constexpr std::int64_t kMaxSpanBytes = std::int64_t{1} << 60;

struct Argument {
  const char* name = "";
  ConstTensorView view;
};

inline std::string dtype_text(DType dtype) {
  if (dtype == DType::none || dtype_bytes(dtype) != 0) return dtype_name(dtype);
  return formatted("unknown ({})", static_cast<std::int32_t>(dtype));
}

inline std::string dtypes_text(std::initializer_list<DType> dtypes) {
  std::string text;
  for (auto dtype = dtypes.begin(); dtype != dtypes.end(); ++dtype) {
    if (std::find(dtypes.begin(), dtype, *dtype) != dtype) continue;
    text += formatted("{}{}", text.empty() ? "" : " or ", dtype_name(*dtype));
  }
  return text;
}

/// Returns whether the number of elements fits in int64. Counts dimensions of size 0 as 1.
inline bool product_fits(const Shape& shape) {
  std::int64_t product = 1;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(dim, 1), &product)) return false;
  }
  return true;
}

inline bool span_fits(const ConstTensorView& view) {
  const std::int64_t bytes = dtype_bytes(view.dtype);
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    std::int64_t reach = 0;
    if (view.shape[d] <= 1) continue;
    if (__builtin_mul_overflow(view.shape[d] - 1, view.strides[d], &reach)) return false;
    if (__builtin_mul_overflow(reach, bytes, &reach)) return false;
    if (reach < -kMaxSpanBytes || reach > kMaxSpanBytes) return false;
    (reach < 0 ? low : high) += reach;
  }
  if (high - low > kMaxSpanBytes) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  return static_cast<std::uintptr_t>(-low) <= address &&
         static_cast<std::uintptr_t>(high + bytes) <= std::numeric_limits<std::uintptr_t>::max() - address;
}

/// A list of arguments. Allocates no memory for up to kMost arguments.
class ArgumentList {
 public:
  void add(const Argument& arg) {
    if (count_ < kMost) {
      arguments_[count_] = arg;
    } else {
      if (count_ == kMost) more_.assign(arguments_.begin(), arguments_.end());
      more_.push_back(arg);
    }
    ++count_;
  }
  const Argument* begin() const { return count_ > kMost ? more_.data() : arguments_.data(); }
  const Argument* end() const { return begin() + count_; }

 private:
  // Room for all arguments of attention, which has the most.
  // It has up to 20: q, k, v, gate, bias, mask, small vectors, a cache and the tensors of the backward pass.
  static constexpr std::size_t kMost = 24;
  std::array<Argument, kMost> arguments_;
  std::vector<Argument> more_;  // all arguments if there are more than kMost; otherwise empty
  std::size_t count_ = 0;
};

/// Checks the arguments of one call. Every error message is one line that begins with the function's name.
class Call {
 public:
  explicit Call(const char* function) : function_(function) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(formatted("{}: ", function_) + formatted(format, std::forward<Args>(args)...));
  }

  /// Returns whether the argument is present. Fails if the argument has data but no dtype.
  bool given(const Argument& arg) const {
    if (!arg.view.present() && arg.view.data != nullptr) fail("{} has data but dtype none", arg.name);
    return arg.view.present();
  }

  void require_given(const Argument& arg) const {
    if (!given(arg)) fail("{} is required but absent", arg.name);
  }

  /// Checks an input's dtype, sizes and memory, and adds it to the list of arguments.
  void input(const Argument& arg, std::initializer_list<DType> dtypes) {
    check(arg, dtypes);
    inputs_.add(arg);
  }

  void output(const Argument& arg, std::initializer_list<DType> dtypes) {
    check(arg, dtypes);
    outputs_.add(arg);
  }

  /// Checks the output `arg`, which is the gradient of input `of`. Does nothing if `arg` is absent.
  /// Fails if `of` is absent, or if the two differ in shape or dtype.
  void gradient(const Argument& arg, const Argument& of) {
    if (!given(arg)) return;
    if (!of.view.present()) fail("{} is asked for but {} is absent", arg.name, of.name);
    output(arg, {of.view.dtype});
    if (arg.view.shape != of.view.shape) {
      fail("{} has shape {} but {} has shape {}", arg.name, shape_text(arg.view.shape), of.name,
           shape_text(of.view.shape));
    }
  }

  /// Checks the bounds of packed sequences, (1,1,1,N+1). The first bound is 0, the last is `total`, and none decreases.
  void bounds(const Argument& arg, const char* letter, std::int64_t total) {
    input(arg, {DType::i32, DType::i64});
    const std::int64_t last = arg.view.shape[3] - 1;
    if (last < 0) fail("{} has shape {} but must be (1,1,1,N+1)", arg.name, shape_text(arg.view.shape));
    shape(arg, "(1,1,1,N+1)", {1, 1, 1, last + 1});
    std::int64_t before = 0;
    for (std::int64_t n = 0; n <= last; ++n) {
      const std::int64_t at = load_index(arg.view, n);
      if (n == 0 && at != 0) fail("{}[0] is {} but must be 0", arg.name, at);
      if (at < before) fail("{}[{}] is {} but {}[{}] is {}", arg.name, n, at, arg.name, n - 1, before);
      if (at > total || (n == last && at != total)) {
        fail("{}[{}] is {} but {} {} = {}", arg.name, n, at, n == last ? "must be" : "must be at most", letter, total);
      }
      before = at;
    }
  }

  /// Checks an optional vector of indices, each in [0, size).
  /// Error messages write `letters` for the vector's shape, and `letter` for `size`.
  void indices(const Argument& arg, const char* letters, const char* letter, std::int64_t size) {
    if (!given(arg)) return;
    input(arg, {DType::i32, DType::i64});
    shape(arg, letters, {1, 1, 1, arg.view.shape[3]});
    for (std::int64_t n = 0; n < arg.view.shape[3]; ++n) {
      const std::int64_t index = load_index(arg.view, n);
      if (index < 0 || index >= size) {
        fail("{}[{}] is {} but must be at least 0 and less than {} = {}", arg.name, n, index, letter, size);
      }
    }
  }

  /// Returns `given_context` with defaults replaced by their values (resolved()).
  /// Error messages begin with the function's name.
  ExecutionContext context(const ExecutionContext& given_context) const {
    try {
      return resolved(given_context);
    } catch (const Error& error) {
      fail("{}", error.what());
    }
  }

  /// Checks that the first `count` entries of a vector of integers are from `low` to `high`.
  void entries(const Argument& arg, std::int64_t count, std::int64_t low, std::int64_t high) const {
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t entry = load_index(arg.view, n);
      if (entry < low || entry > high) fail("{}[{}] is {} but must be {} to {}", arg.name, n, entry, low, high);
    }
  }

  void shape(const Argument& arg, const char* letters, const Shape& expected) const {
    if (arg.view.shape != expected) {
      fail("{} has shape {} but {} is {}", arg.name, shape_text(arg.view.shape), letters, shape_text(expected));
    }
  }

  /// Checks that the shape can be broadcast to `full`. The last dimension must have the size in `full`; the others may
  /// be 1.
  void broadcastable(const Argument& arg, const Shape& full, const char* needed = "(B|1,Hq|1,T|1,S)",
                     const char* letters = "(B,Hq,T,S)") const {
    for (std::size_t d = 0; d < 4; ++d) {
      if (arg.view.shape[d] != full[d] && (d == 3 || arg.view.shape[d] != 1)) {
        fail("{} has shape {} but {} is needed and {} is {}", arg.name, shape_text(arg.view.shape), needed, letters,
             shape_text(full));
      }
    }
  }

  void same_dim(const Argument& a, const Argument& b, std::size_t dim, const char* letter) const {
    if (a.view.shape[dim] != b.view.shape[dim]) {
      fail("{} has shape {} but {} has shape {}: {} is {} and {}", a.name, shape_text(a.view.shape), b.name,
           shape_text(b.view.shape), letter, a.view.shape[dim], b.view.shape[dim]);
    }
  }

  /// Permits an update in place: the arguments named `output` and `input` may be the same view. no_overlap() still
  /// refuses them if they overlap but differ. Both arguments must be registered.
  void allow_in_place(const char* output, const char* input) {
    in_place_output_ = output;
    in_place_input_ = input;
  }

  /// Fails if elements of an output overlap with each other, with an input or with another output. Permits views that
  /// interleave in one buffer without sharing elements, such as the parts of a fused projection.
  void no_overlap() const {
    for (const Argument& output : outputs_) {
      const auto& [name, view] = output;
      if (elements_overlap(view)) {
        fail("{} has shape {} and strides {} under which elements overlap", name, shape_text(view.shape),
             shape_text(view.strides));
      }
      for (const Argument& other : inputs_) {
        if (!updated_in_place(output, other)) disjoint(output, other);
      }
      for (const Argument* other = outputs_.begin(); other != &output; ++other) disjoint(output, *other);
    }
  }

 private:
  void check(const Argument& arg, std::initializer_list<DType> dtypes) const {
    const ConstTensorView& view = arg.view;
    if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
      fail("{} has dtype {} but must be {}", arg.name, dtype_text(view.dtype), dtypes_text(dtypes));
    }
    if (std::any_of(view.shape.begin(), view.shape.end(), [](std::int64_t dim) { return dim < 0; })) {
      fail("{} has shape {} but sizes must be at least 0", arg.name, shape_text(view.shape));
    }
    if (!product_fits(view.shape)) {
      fail("{} has shape {} whose number of elements overflows 64 bits", arg.name, shape_text(view.shape));
    }
    check_memory(arg);
  }

  void check_memory(const Argument& arg) const {
    const ConstTensorView& view = arg.view;
    if (view.numel() > 0 && view.data == nullptr) {
      fail("{} has shape {} but null data", arg.name, shape_text(view.shape));
    }
    if (view.numel() > 0 && reinterpret_cast<std::uintptr_t>(view.data) % dtype_bytes(view.dtype) != 0) {
      fail("{} has data {} which is not aligned to the {} bytes of {}", arg.name, view.data, dtype_bytes(view.dtype),
           dtype_name(view.dtype));
    }
    // Checks empty views too, because kernels may compute addresses with their strides. The data of an empty view may
    // be null; the check then uses the address 2^62.
    ConstTensorView reach = view;
    if (view.numel() == 0) reach.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 62);
    if (!span_fits(reach)) {
      fail("{} has shape {} and strides {} which reach outside the address space", arg.name, shape_text(view.shape),
           shape_text(view.strides));
    }
  }

  bool updated_in_place(const Argument& output, const Argument& input) const {
    const ConstTensorView &to = output.view, &from = input.view;
    return std::string_view(output.name) == in_place_output_ && std::string_view(input.name) == in_place_input_ &&
           to.data == from.data && to.dtype == from.dtype && to.shape == from.shape && to.strides == from.strides;
  }

  void disjoint(const Argument& a, const Argument& b) const {
    if (provably_overlap(a.view, b.view)) {
      fail("{} overlaps {} in memory: {} has shape {} and strides {}, {} has shape {} and strides {}", a.name, b.name,
           a.name, shape_text(a.view.shape), shape_text(a.view.strides), b.name, shape_text(b.view.shape),
           shape_text(b.view.strides));
    }
  }

  const char* function_;
  std::string_view in_place_output_, in_place_input_;  // empty: none
  ArgumentList inputs_;
  ArgumentList outputs_;
};

template <typename Enum>
void check_enum(const Call& call, const char* name, Enum value, Enum last) {
  const auto code = static_cast<std::int32_t>(value);
  if (code < 0 || code > static_cast<std::int32_t>(last)) {
    call.fail("{} is {} but must be 0 to {}", name, code, static_cast<std::int32_t>(last));
  }
}

}  // namespace headgate
