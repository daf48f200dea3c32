// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "library/core/element.hpp"
#include "models/io/npy.hpp"
#include "models/io/output_guard.hpp"
#include "models/io/staged_file.hpp"
#include "tool/attend/job.hpp"

namespace headgate::attend {
namespace {

namespace fs = std::filesystem;

bool is_float(DType dtype) { return dtype == DType::f16 || dtype == DType::f32 || dtype == DType::f64; }

/// Converts the elements in the order of memory; the strides stay the same.
io::Array converted(const io::Array& from, DType dtype) {
  io::Array to = io::make_array(dtype, from.shape);
  to.strides = from.strides;
  const std::int64_t n = from.numel();
  for (std::int64_t i = 0; i < n; ++i) {
    store_element(to.data.get(), dtype, i, load_element(from.data.get(), from.dtype, i));
  }
  return to;
}

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

/// Reads the files of inputs in the dtypes that the computation takes.
class Reader {
 public:
  /// `dtype`: what all that has the dtype of q is converted to.
  Reader(const Files& files, std::optional<DType> dtype)
      : q_path_(files.inputs[&AttentionInputs::q]), converts_(dtype.has_value()) {
    q_ = read_float(q_path_);
    q_dtype_ = q_.dtype;
    compute_ = dtype.value_or(q_dtype_);
  }

  io::Array q() { return in_dtype(std::move(q_), compute_); }

  template <class Row>
  io::Array read(const Row& row, const std::string& path) const {
    if (path.empty()) return {};
    switch (row.elements) {
      case Elements::floats:
      case Elements::of_q: return like_q(path);
      case Elements::of_q_or_i8: {
        io::Array array = io::read_npy(path);
        return array.dtype == DType::i8 ? std::move(array) : like_q(path, std::move(array));
      }
      case Elements::of_q_or_f32: return row.file.or_f32 ? like_q_or_f32(path) : like_q(path);
      case Elements::f32: return in_dtype(read_float(path), DType::f32);
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

 private:
  io::Array like_q(const std::string& path) const { return like_q(path, io::read_npy(path)); }
  io::Array like_q(const std::string& path, io::Array array) const {
    require_float(path, array);
    if (!converts_ && array.dtype != q_dtype_) {
      io::fail(path, "has dtype {} but {} has {} (--dtype converts them)", dtype_name(array.dtype), q_path_,
               dtype_name(q_dtype_));
    }
    return in_dtype(std::move(array), compute_);
  }
  io::Array like_q_or_f32(const std::string& path) const {
    io::Array array = read_float(path);
    return array.dtype == compute_ ? std::move(array) : in_dtype(std::move(array), DType::f32);
  }

  const std::string& q_path_;
  bool converts_;
  io::Array q_;
  DType q_dtype_, compute_;
};

using io::NamedPath;

std::vector<NamedPath> input_paths(const Files& files) {
  std::vector<NamedPath> paths;
  for (std::size_t n = 0; n < kAttentionInputs.size(); ++n) {
    paths.push_back({std::string(kAttentionInputs[n].file.option), files.inputs[n]});
  }
  for (std::size_t n = 0; n < kIncomingTensors.size(); ++n) {
    paths.push_back({std::string(kIncomingTensors[n].file.option), files.incoming[n]});
  }
  return paths;
}

std::string gradient_path(const Files& files, const AttentionGradient& gradient) {
  return (fs::path(files.grad_dir) / (std::string(gradient.file.name) + ".npy")).string();
}

std::string statistic_path(const Files& files, const StatisticsOutput& output) {
  return (fs::path(files.statistics.directory) / (std::string(output.name) + ".npy")).string();
}

std::vector<NamedPath> output_paths(const Files& files) {
  std::vector<NamedPath> paths;
  for (std::size_t n = 0; n < kAttentionOutputs.size(); ++n) {
    if (!files.outputs[n].empty()) paths.push_back({std::string(kAttentionOutputs[n].file.option), files.outputs[n]});
  }
  for (const StatisticsOutput& output : kStatisticsOutputs) {
    const bool written = !files.statistics.directory.empty() && files.statistics.wants(output);
    if (written) paths.push_back({"--stats", statistic_path(files, output)});
  }
  if (files.grad_dir.empty()) return paths;
  for (const AttentionGradient& gradient : kAttentionGradients) {
    if (!files.inputs[gradient.gradient_of].empty()) paths.push_back({"--grad-dir", gradient_path(files, gradient)});
  }
  return paths;
}

}  // namespace

void check_outputs(const Files& files) {
  const std::vector<NamedPath> outputs = output_paths(files);
  io::check_overwrites(outputs, input_paths(files));
  const auto is_new = [](const std::string& directory) {
    std::error_code error;
    return !directory.empty() && !fs::exists(directory, error);
  };
  const bool new_gradients = is_new(files.grad_dir), new_statistics = is_new(files.statistics.directory);
  for (const auto& [option, path] : outputs) {
    const bool in_new_directory = (new_gradients && option == "--grad-dir") || (new_statistics && option == "--stats");
    io::check_writable(in_new_directory ? fs::path(path).parent_path().string() : path);
  }
}

Arrays read_inputs(const Files& files, std::optional<DType> dtype) {
  Reader reader(files, dtype);
  Arrays arrays;
  for (std::size_t n = 0; n < kAttentionInputs.size(); ++n) {
    const AttentionInput& row = kAttentionInputs[n];
    arrays.inputs[n] = row.member == &AttentionInputs::q ? reader.q() : reader.read(row, files.inputs[n]);
  }
  for (std::size_t n = 0; n < kIncomingTensors.size(); ++n) {
    arrays.incoming[n] = reader.read(kIncomingTensors[n], files.incoming[n]);
  }
  return arrays;
}

void write_outputs(const Files& files, const Results& results) {
  io::NpyWriter writer;
  const auto add = [&writer](const std::string& path, const io::Array& array) {
    if (!array.present()) return;
    // NumPy has no bf16; f32 holds each of its values.
    if (array.dtype == DType::bf16) {
      writer.add(path, converted(array, DType::f32));
    } else {
      writer.add(path, array);
    }
  };
  for (std::size_t n = 0; n < kAttentionOutputs.size(); ++n) {
    if (!files.outputs[n].empty()) add(files.outputs[n], results.outputs[n]);
  }
  if (!files.statistics.directory.empty()) {
    writer.make_directory(files.statistics.directory);
    for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
      add(statistic_path(files, kStatisticsOutputs[n]), results.statistics[n]);
    }
  }
  if (!files.grad_dir.empty()) {
    writer.make_directory(files.grad_dir);
    for (std::size_t n = 0; n < kAttentionGradients.size(); ++n) {
      add(gradient_path(files, kAttentionGradients[n]), results.gradients[n]);
    }
  }
  writer.commit();
}

}  // namespace headgate::attend
