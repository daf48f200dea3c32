// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <filesystem>
#include <string>
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

/// Reads values that the library takes in f32 or f64.
io::Array read_small(const std::string& path) {
  io::Array array = read_float(path);
  return array.dtype == DType::f16 ? converted(array, DType::f32) : std::move(array);
}

io::Array read_integers(const std::string& path) {
  if (path.empty()) return {};
  io::Array array = io::read_npy(path);
  if (array.dtype != DType::i32 && array.dtype != DType::i64) {
    io::fail(path, "has dtype {} but must be i32 or i64", dtype_name(array.dtype));
  }
  return array;
}

using io::NamedPath;

std::vector<NamedPath> input_paths(const Files& files) {
  return {{"--q", files.q},
          {"--k", files.k},
          {"--v", files.v},
          {"--gate", files.gate},
          {"--bias", files.bias},
          {"--mask", files.mask},
          {"--key-lengths", files.key_lengths},
          {"--query-offsets", files.query_offsets},
          {"--cu-seqlens-q", files.cu_seqlens_q},
          {"--cu-seqlens-k", files.cu_seqlens_k},
          {"--alibi", files.alibi},
          {"--sinks", files.sinks},
          {"--grad-out", files.grad_out},
          {"--block-table", files.block_table},
          {"--k-scale", files.k_scale},
          {"--v-scale", files.v_scale}};
}

std::string gradient_path(const Files& files, const char* name) {
  return (fs::path(files.grad_dir) / (std::string(name) + ".npy")).string();
}

std::string statistic_path(const Files& files, const StatisticsOutput& output) {
  return (fs::path(files.statistics.directory) / (std::string(output.name) + ".npy")).string();
}

std::vector<NamedPath> output_paths(const Files& files) {
  std::vector<NamedPath> paths = {{"--out", files.out}};
  if (!files.lse.empty()) paths.push_back({"--lse", files.lse});
  if (!files.weights.empty()) paths.push_back({"--weights", files.weights});
  for (const StatisticsOutput& output : kStatisticsOutputs) {
    const bool written = !files.statistics.directory.empty() && files.statistics.wants(output);
    if (written) paths.push_back({"--stats", statistic_path(files, output)});
  }
  if (files.grad_dir.empty()) return paths;
  for (const char* name : {"dq", "dk", "dv"}) paths.push_back({"--grad-dir", gradient_path(files, name)});
  if (!files.gate.empty()) paths.push_back({"--grad-dir", gradient_path(files, "dz")});
  if (!files.bias.empty()) paths.push_back({"--grad-dir", gradient_path(files, "dbias")});
  if (!files.sinks.empty()) paths.push_back({"--grad-dir", gradient_path(files, "dsinks")});
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
  Arrays a;
  a.q = read_float(files.q);
  const DType q_dtype = a.q.dtype;
  const DType compute = dtype.value_or(q_dtype);
  a.q = in_dtype(std::move(a.q), compute);
  enum class Bytes { refused, kept };
  const auto read_like_q = [&](const std::string& path, Bytes bytes = Bytes::refused) {
    if (path.empty()) return io::Array{};
    io::Array array = io::read_npy(path);
    if (array.dtype == DType::i8 && bytes == Bytes::kept) return array;
    require_float(path, array);
    if (!dtype && array.dtype != q_dtype) {
      io::fail(path, "has dtype {} but {} has {} (--dtype converts them)", dtype_name(array.dtype), files.q,
               dtype_name(q_dtype));
    }
    return in_dtype(std::move(array), compute);
  };
  a.k = read_like_q(files.k, Bytes::kept);
  a.v = read_like_q(files.v, Bytes::kept);
  a.gate = read_like_q(files.gate);
  a.grad_out = read_like_q(files.grad_out);
  if (!files.bias.empty()) {
    a.bias = read_float(files.bias);
    if (a.bias.dtype != compute) a.bias = in_dtype(std::move(a.bias), DType::f32);
  }
  if (!files.mask.empty()) {
    a.mask = io::read_npy(files.mask);
    if (a.mask.dtype != DType::boolean) {
      io::fail(files.mask, "has dtype {} but must be bool", dtype_name(a.mask.dtype));
    }
  }
  a.key_lengths = read_integers(files.key_lengths);
  a.query_offsets = read_integers(files.query_offsets);
  a.cu_seqlens_q = read_integers(files.cu_seqlens_q);
  a.cu_seqlens_k = read_integers(files.cu_seqlens_k);
  if (!files.block_table.empty()) {
    a.block_table = io::read_npy(files.block_table);
    if (a.block_table.dtype != DType::i32) {
      io::fail(files.block_table, "has dtype {} but must be i32", dtype_name(a.block_table.dtype));
    }
  }
  if (!files.k_scale.empty()) a.k_scale = in_dtype(read_float(files.k_scale), DType::f32);
  if (!files.v_scale.empty()) a.v_scale = in_dtype(read_float(files.v_scale), DType::f32);
  if (!files.alibi.empty()) a.alibi = read_small(files.alibi);
  if (!files.sinks.empty()) a.sinks = read_small(files.sinks);
  return a;
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
  add(files.out, results.y);
  if (!files.lse.empty()) add(files.lse, results.lse);
  if (!files.weights.empty()) add(files.weights, results.weights);
  if (!files.statistics.directory.empty()) {
    writer.make_directory(files.statistics.directory);
    for (std::size_t n = 0; n < kStatisticsOutputs.size(); ++n) {
      add(statistic_path(files, kStatisticsOutputs[n]), results.statistics[n]);
    }
  }
  if (!files.grad_dir.empty()) {
    writer.make_directory(files.grad_dir);
    add(gradient_path(files, "dq"), results.dq);
    add(gradient_path(files, "dk"), results.dk);
    add(gradient_path(files, "dv"), results.dv);
    add(gradient_path(files, "dz"), results.dgate);
    add(gradient_path(files, "dbias"), results.dbias);
    add(gradient_path(files, "dsinks"), results.dsinks);
  }
  writer.commit();
}

}  // namespace headgate::attend
