// SPDX-License-Identifier: Apache-2.0
#include "tool/attend/reader.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "library/core/element.hpp"

namespace headgate::attend {
namespace {

bool is_float(DType dtype) { return dtype == DType::f16 || dtype == DType::f32 || dtype == DType::f64; }

io::Array in_dtype(io::Array array, DType dtype) {
  return array.dtype == dtype ? std::move(array) : converted(array, dtype);
}

void require_float(const std::string& path, const io::Array& array) {
  if (!is_float(array.dtype)) io::fail(path, "has dtype {} but must be f16, f32 or f64", dtype_name(array.dtype));
}

io::Array read_float(const std::string& path) {
  io::Array array = io::read_npy(path);
  require_float(path, array);
  return array;
}

io::Array read_of_types(const std::string& path, std::initializer_list<DType> types, std::string_view wanted) {
  io::Array array = io::read_npy(path);
  if (std::find(types.begin(), types.end(), array.dtype) == types.end()) {
    io::fail(path, "has dtype {} but must be {}", dtype_name(array.dtype), wanted);
  }
  return array;
}

}  // namespace

io::Array converted(const io::Array& from, DType dtype) {
  io::Array to = io::make_array(dtype, from.shape);
  to.strides = from.strides;
  const std::int64_t n = from.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    store_element(to.data.get(), dtype, i, load_element(from.data.get(), from.dtype, i));
  }
  return to;
}

Reader::Reader(const std::string& q_path, std::optional<DType> dtype)
    : q_path_(q_path), converts_(dtype.has_value()), q_(read_float(q_path)), q_dtype_(q_.dtype) {
  compute_ = dtype.value_or(q_dtype_);
}

io::Array Reader::q() { return in_dtype(std::move(q_), compute_); }

io::Array Reader::read(Elements elements, bool or_f32, const std::string& path) const {
  if (path.empty()) return {};
  switch (elements) {
    case Elements::floats: return read_float(path);
    case Elements::of_x:
    case Elements::of_q: return like_q(path, io::read_npy(path));
    case Elements::of_q_or_i8: {
      io::Array array = io::read_npy(path);
      return array.dtype == DType::i8 ? std::move(array) : like_q(path, std::move(array));
    }
    case Elements::of_x_or_f32:
    case Elements::of_q_or_f32: {
      io::Array array = read_float(path);
      if (or_f32) return array.dtype == compute_ ? std::move(array) : in_dtype(std::move(array), DType::f32);
      return array.dtype == DType::f32 && !converts_ ? std::move(array) : like_q(path, std::move(array));
    }
    case Elements::f32: return in_dtype(read_float(path), DType::f32);
    case Elements::f64_or_f32:
    case Elements::f32_or_f64: {
      io::Array array = read_float(path);
      return array.dtype == DType::f16 ? converted(array, DType::f32) : std::move(array);
    }
    case Elements::boolean: return read_of_types(path, {DType::boolean}, "bool");
    case Elements::integers: return read_of_types(path, {DType::i32, DType::i64}, "i32 or i64");
    case Elements::i32: return read_of_types(path, {DType::i32}, "i32");
  }
  return {};
}

io::Array Reader::like_q(const std::string& path, io::Array array) const {
  require_float(path, array);
  if (!converts_ && array.dtype != q_dtype_) {
    io::fail(path, "has dtype {} but {} has {} (--dtype converts them)", dtype_name(array.dtype), q_path_,
             dtype_name(q_dtype_));
  }
  return in_dtype(std::move(array), compute_);
}

}  // namespace headgate::attend
